"""What is mended, what is dropped, and that it is counted; genuine text stays as it is."""

from story_files import ODD_STORIES, misread, stories_in

from nanostories.corpus.cleaning import COMPLETE, clean
from nanostories.corpus.token_files import load_meta
from prepare import Options, prepare

GOOD = (
    "“Hi,” said Zoë’s naïve piñata — “it’s 5 € … ÉCLAIR à la ½ carte for São João!” ★ ♥ ❤ ✨ 🐉😊"
    " Ñandú ‘Öl’."
)


def test_a_letter_and_its_accent_are_one_character():
    assert clean("Ti\u1ebfng Vi\u1ec7t e\u0301.") == ("Ti\u1ebfng Vi\u1ec7t \u00e9.", False)


def test_html_is_read():
    assert clean("&bdquo;Ham &amp; eggs,&ldquo; said Tom&#39;s dog.") == (
        "„Ham & eggs,“ said Tom's dog.",
        True,
    )
    assert clean("Tom & Sue; the end.") == ("Tom & Sue; the end.", False)


def test_mojibake_is_mended():
    assert clean("â€œDonâ€™t,â€ he said. â€œYes!â€") == (
        "“Don’t,” he said. “Yes!”",
        True,
    )  # the last byte of ” lost
    assert clean("wellâ€¦ aâ€”b â€“ cafÃ© PiÃ±ata, Â½ Â£5") == (
        "well… a—b – café Piñata, ½ £5",
        True,
    )
    assert clean(misread(GOOD)) == clean(GOOD.encode().decode("latin-1")) == (GOOD, True)
    quotes = "“Yes,” he said. “No!”“Yes!”"
    assert clean(misread(quotes, "ignore"))[0] == clean(misread(quotes, "replace"))[0] == quotes


LEGITIMATE = [
    GOOD,
    *ODD_STORIES,
    "“CAFÉ”, ‘Café’, “‘Café’”, JOSÉ’s, «MANHÃ», “MANHÃ”, IRMÃ’S, NÃO, AMANHÃ…",
    "Â, Ã, â, ð. Ânes, château, âge, bâton, pâté; «là»; “voilà”… à “lui” — é—è.",
    "Það var ð… Ðe. €5, €â, â‚ ‡",
    "çÇ ãÃ õÕ êÊ ÀÈÌÒÙ “È”“É”“Ê”“À” Ελληνικά, Русский, 日本語。",
]


def test_legitimate_text_stays():
    assert [clean(text) for text in LEGITIMATE] == [(text, False) for text in LEGITIMATE]


def test_white_space():
    assert clean("\r\n One.  \r\nTwo. \t \n\n  Three.\rFour. \n") == (
        "One.\nTwo.\n\n  Three.\nFour.",
        False,
    )


def test_cleaning_is_counted(tmp_path, capsys):
    train = [
        # 2 empty, 5 cut
        "",
        "  \n ",
        "No end",
        "It said:",
        "Then she said, “Yes,",
        'and a "',
        "From then on, the",
        "One.",
        "Two!",
        "Three?”",
        'Four.")',
        "Five.'",
        "Six…",
        "Seven.»",
        "Eight.\n\nThe End",
        "THE END",
        'Nine.".',
        "One.",
        " One. \r\n",
        "Two!",  # 3 copies
        "Donâ€™t.",
        "Don’t.",  # mended, then a copy
        "Val one.",
        "Val two!",
        "Val two!",  # 3 that are in val
    ]
    val = ["Val one.", "Val two! ", "Val two!", "Three", "Ten."]  # a copy, a cut one
    prepare(tmp_path / "x", ["here"], train, val, Options(vocab_size=257))
    assert stories_in(tmp_path / "x", "train") == [*train[7:17], "Don’t."]
    assert stories_in(tmp_path / "x", "val") == ["Val one.", "Val two!", "Ten."]
    # read, mojibake repaired, empty, truncated, duplicates, in val
    assert list(load_meta(tmp_path / "x")["cleaning"].values()) == [30, 1, 2, 0, 6, 5, 3]
    assert capsys.readouterr().out.count("dropped, as") == 3  # not of all six


WHOLE = [
    "猫はいました。",
    "「おやすみ。」",
    "什么？！",
    "वह घर गया।",
    "هل عدت؟",
    "ቤት ሄደ።",
    "Տուն գնաց։",
    "សូមអរគុណ។",
    "འགྲོ།",
    "Πού;".replace(";", "\u037e"),
    "Da war er.“",
    "»Ja.«",
    "« Viens\u202f!\u202f»",
    "『はい。』）",
    "שלום.\u200f",
    "Good night 😊",
    "Flag 🇫🇷",
    "Home 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "One 1️⃣",
    "She slept. 🌙✨",
    "แล้วแมวก็หลับไป",
    "ແລ້ວແມວກໍນອນຫຼັບ",
    "နောက်တော့ ကြောင်လေး အိပ်ပျော်သွားတယ်။",
    "**The end.**",
    "And then… ",
    "He asked ‽",
    "“‘Go!’ he said.”",
    "Era feliz.\n\nFIN",
]
CUT = [
    "猫はいました、",
    "He ran and",
    "She said, “",
    "“Yes,”",
    "It said:",
    "वह घर",
    "*",
    "”",
    "He had 5 €",
    "a — b —",
    "เธอพูดว่า:",
    "ကြောင်လေး",
]


def test_any_scripts_sentence_end_is_an_end():
    assert [story for story in WHOLE if not COMPLETE.search(story)] == []
    assert [story for story in CUT if COMPLETE.search(story)] == []
