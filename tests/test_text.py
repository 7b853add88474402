"""Words and sentences of any script."""

import pytest
from rouge_score.tokenize import tokenize

from nanostories.text import sentences, split_sentences, words_of


@pytest.mark.parametrize(
    "text, words",
    [
        ("Zoë's café, 3 crêpes_", ["zoë", "s", "café", "3", "crêpes"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("猫が走る。", ["猫", "が", "走", "る"]),
        ("หมาวิ่ง 3 ตัว", ["ห", "ม", "า", "วิ่", "ง", "3", "ตั", "ว"]),
        ("한국어 이야기", ["한국어", "이야기"]),
        ("", []),
    ],
)
def test_words(text, words):
    assert words_of(text) == words


def test_english_words_are_those_of_rouge_score():
    text = "Once upon a time, Tom's 3 red-and-blue kites said: \"We can't fly!\" 12:30"
    assert words_of(text) == tokenize(text, stemmer=None)


def test_sentences_keep_speech_together():
    text = ' ran. "Stop! I am slow," said Tom. Mr. Fox did not.\n\n"Oh!" He sat… Then'
    pieces = [
        " ran.",
        ' "Stop! I am slow," said Tom.',
        " Mr. Fox did not.",
        '\n\n"Oh!"',
        " He sat…",
        " Then",
    ]
    assert sentences(text) == pieces and "".join(pieces) == text
    assert sentences('am sad. I go." He went.', preceding='She said, "I') == [
        'am sad. I go."',
        " He went.",
    ]
    assert sentences("“Go. Now.” She went.") == ["“Go. Now.”", " She went."]
    assert sentences("") == []


def test_sentences_of_other_scripts():
    texts = {
        'वह घर गया।| "चलो। जल्दी!" राम ने कहा।| क्या हुआ?': ["वह घर गया।", "क्या हुआ?"],
        "狐がいました。|「はい。いいえ！」と言いました。|なぜ？！|終わり。": [
            "狐がいました。",
            "なぜ？！",
            "終わり。",
        ],
        "ذهب إلى البيت.| هل عاد؟| نعم.": ["ذهب إلى البيت.", "هل عاد؟", "نعم."],
        "Où est-il ?| Ému, il part.": ["Où est-il ?", "Ému, il part."],
    }
    for text, whole in texts.items():
        assert sentences(text.replace("|", "")) == text.split("|")
        assert split_sentences(text.replace("|", "")) == whole  # without pieces of speech


def test_the_period_of_a_title_ends_no_sentence():
    assert split_sentences("Mr. Fox ran. Then Dr. Owl came.") == [
        "Mr. Fox ran.",
        "Then Dr. Owl came.",
    ]
