"""Words and sentences of any script."""

import pytest

from nanostories.text import sentences, split_sentences, words_of


@pytest.mark.parametrize(
    "text, words",
    [
        ("Zoë's 3 crêpes_", ["zoë", "s", "3", "crêpes"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("猫が走る。", ["猫", "が", "走", "る"]),
        ("วิ่ง 3 ตัว", ["วิ่", "ง", "3", "ตั", "ว"]),
        ("한국어 이야기", ["한국어", "이야기"]),
    ],
)
def test_words(text, words):
    assert words_of(text) == words


def test_sentences_keep_speech_together():
    pieces = [" ran.", ' "Stop! I am slow," said Tom.', " He did not.", '\n\n"Oh!"', " Then"]
    assert sentences("".join(pieces)) == pieces
    found = sentences('am sad. I go." He went.', preceding='She said, "I')
    assert found == ['am sad. I go."', " He went."]
    assert sentences("“Go. Now.” She went.") == ["“Go. Now.”", " She went."]


@pytest.mark.parametrize(
    "text, whole",
    [
        ("Mr. Fox ran.| Then Dr. Owl came.", ["Mr. Fox ran.", "Then Dr. Owl came."]),
        ('वह घर गया।| "चलो। जल्दी!" राम ने कहा।| क्या हुआ?', ["वह घर गया।", "क्या हुआ?"]),
        (
            "狐がいました。|「はい。いいえ！」と言いました。|なぜ？！",
            ["狐がいました。", "なぜ？！"],
        ),
        ("ذهب إلى البيت.| هل عاد؟", ["ذهب إلى البيت.", "هل عاد؟"]),
        ("Où est-il ?| Ému, il part.", ["Où est-il ?", "Ému, il part."]),
    ],
)
def test_sentences_of_any_script(text, whole):
    assert sentences(text.replace("|", "")) == text.split("|")
    assert split_sentences(text.replace("|", "")) == whole  # without pieces of speech
