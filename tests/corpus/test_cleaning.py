"""What is mended, what is dropped, and that it is counted; genuine text stays as it is."""

from story_files import ODD_STORIES, misread

from nanostories.corpus.cleaning import CLEANING, COMPLETE, clean
from prepare import Options, clean_and_split

GOOD = (
    "“Hi,” said Zoë’s naïve piñata — “it’s 5 € … ÉCLAIR à la ½ carte for São João!” ★ ♥ ❤ ✨ 🐉😊"
    " Ñandú ‘Öl’."
)


CLEANED = {  # mended, or only tidied
    "Ti\u1ebfng Vi\u1ec7t e\u0301.": ("Ti\u1ebfng Vi\u1ec7t \u00e9.", False),
    "&bdquo;Ham &amp; eggs,&ldquo; said Tom&#39;s dog.": ("„Ham & eggs,“ said Tom's dog.", True),
    "Tom & Sue; the end.": ("Tom & Sue; the end.", False),
    # the last byte of ” is lost
    "â€œDonâ€™t,â€ he said. â€œYes!â€\ufffd": ("“Don’t,” he said. “Yes!”", True),
    "wellâ€¦ aâ€”b â€“ cafÃ© PiÃ±ata, Â½ Â£5": ("well… a—b – café Piñata, ½ £5", True),
    misread(GOOD): (GOOD, True),
    GOOD.encode().decode("latin-1"): (GOOD, True),
    "\r\n One.  \r\nTwo. \t \n\n  Three.\rFour. \n": ("One.\nTwo.\n\n  Three.\nFour.", False),
}


LEGITIMATE = [
    GOOD,
    *ODD_STORIES,
    "“CAFÉ”, ‘Café’, “‘Café’”, JOSÉ’s, «MANHÃ», “MANHÃ”, IRMÃ’S, NÃO, AMANHÃ…",
    "Â, Ã, â, ð. Ânes, château, âge, bâton, pâté; «là»; “voilà”… à “lui” — é—è.",
    "Það var ð… Ðe. €5, €â, â‚ ‡",
    "çÇ ãÃ õÕ êÊ ÀÈÌÒÙ “È”“É”“Ê”“À” Ελληνικά, Русский, 日本語。",
]


def test_what_is_mended_and_what_stays():
    expected = CLEANED | {text: (text, False) for text in LEGITIMATE}
    assert {text: clean(text) for text in expected} == expected


def test_cleaning_is_counted(capsys):
    whole = ["One.", "Three?”", "THE END"]
    copies = [" One. \r\n", "Don’t."]
    in_val = ["Val one.", "Val two!", "Val two!"]
    train = ["", "  \n ", "No end", "She said, “Yes,", *whole, "Donâ€™t.", *copies, *in_val]
    val = ["Val one.", "Val two! ", "Val two!", "Three", "Five"]  # a copy, two cut ones
    counts = dict.fromkeys(CLEANING, 0)
    kept = list(clean_and_split(train, val, Options(), counts))
    assert [text for split, text in kept if split == "train"] == [*whole, "Don’t."]
    assert [text for split, text in kept if split == "val"] == ["Val one.", "Val two!"]
    # read, repaired, empty, without a header, truncated, duplicates, in val
    assert list(counts.values()) == [18, 1, 2, 0, 4, 3, 3]
    assert capsys.readouterr().out.count("dropped, as") == 3  # not of all four


WHOLE = [
    "猫はいました。",
    "「おやすみ。」",
    "वह घर गया।",
    "أين ذهب؟",
    "འགྲོ།",
    "Πού\u037e",
    "»Ja.«",
    "« Viens\u202f!\u202f»",
    "שלום.\u200f",
    "Home 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "One 1️⃣",
    "Flag 🇫🇷",
    "แล้วแมวก็หลับไป",
    "ແລ້ວແມວກໍນອນຫຼັບ",
    "နောက်တော့ ကြောင်လေး အိပ်ပျော်သွားတယ်။",
    "**The end.**",
    "And then… ",
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
    "He had 5 €",
    "a — b —",
    "เธอพูดว่า:",
    "ကြောင်လေး",
]


def test_any_scripts_sentence_end_is_an_end():
    assert [story for story in WHOLE if not COMPLETE.search(story)] == []
    assert [story for story in CUT if COMPLETE.search(story)] == []
