"""
Clean a story of mojibake, stray white space and odd line ends, and tell complete stories from those
that were cut off. Nothing is dropped here: prepare.py drops and counts those that were cut off,
empty ones and duplicates.

>>> clean("â€œDonâ€™t,â€ he said. \\r\\n")
('“Don’t,” he said.', True)
"""

import html
import re
import unicodedata

import regex

# Reasons to drop a story
EMPTY = "dropped as empty"
NO_HEADER = "dropped without a header or a story"
TRUNCATED = "dropped as truncated"
DUPLICATE = "dropped as duplicates"
IN_VALIDATION = "dropped from train, because also in val"
CLEANING = (  # what meta.json counts, in this order
    "stories read",
    "repaired (garbled characters, entities)",
    EMPTY,
    NO_HEADER,
    TRUNCATED,
    DUPLICATE,
    IN_VALIDATION,
)

# UTF-8 that was once read as cp1252: ’ (bytes E2 80 99) became â€™. Bytes that cp1252 leaves
# undefined became control characters, or were lost (â€ alone was ”). Genuine text such as “CAFÉ” or
# “MANHÃ” is left alone.
CP1252 = bytes(range(0x80, 0xA0)).decode("cp1252", errors="ignore")
TO_LATIN1 = {ord(character): character.encode("cp1252")[0] for character in CP1252}
# The characters as which bytes 80 to 9F, and bytes A0 to BF, were read
LOW = f"[{CP1252}\x80-\x9f]"
HIGH = "[\xa0-\xbf]"
MOJIBAKE = re.compile(
    rf"(?<![^\W\d_])Ã{LOW}"  # À to ß: capitals, so only where a word begins
    rf"|(?<![A-ZÀ-Þ][A-ZÀ-Þ])[ÂÃ]{HIGH}"  # à to ÿ, ½, °, ¡: not in a word of capitals
    rf"|â[€\x80‚\x82„\x84˜\x98™\x99œ\x9c\x9d](?:{LOW}|{HIGH})"  # quotes, dashes, €, ™, ★, ♥, ✨, ❤
    rf"|ð[Ÿ\x9f](?:{LOW}|{HIGH}){{2}}"  # emoji
    rf"|â€\ufffd?"  # ”, the last byte lost
)
ENTITY = re.compile(r"&(?:[A-Za-z]\w*|#\w+);")  # of HTML, such as &quot; or &#39;
# A complete story ends with a sentence mark (UAX #29's Sentence_Terminal, in any script, or one of
# … ‥ ⋯ and the Greek and Tibetan marks), an emoji, “The end”, or “Fin” and its like after such a
# mark, perhaps followed by closing quotes, brackets, Markdown's * and _, and zero-width characters,
# and by a line of dashes and the like.
# 0.5% of the published stories were cut off. Thai, Lao and related Tai scripts do not mark the end
# of a sentence: a story that ends in one of their letters is complete. \u20e3: a keycap, as in 1️⃣
EMOJI = r"\p{Extended_Pictographic}\p{Emoji_Modifier}\p{Regional_Indicator}\u20e3"
CLOSING = r"""\s"'*_`＂＇\p{Pe}\p{Pf}\p{Pi}\p{Cf}\p{Mn}"""
UNMARKED = r"\p{Thai}\p{Lao}\p{Tai_Le}\p{New_Tai_Lue}\p{Tai_Viet}"
FIN = rf"\p{{Sentence_Terminal}}[{CLOSING}]*(?i:fin|fine|fim|ende|конец|koniec)"
THE_END = rf"\b(?i:the end)(?:\s*[~–—-]+)?|{FIN}"
LINE = rf"(?<=\n)[-–—=#~][-–—=#~{CLOSING}]*+"  # of dashes and the like
COMPLETE = regex.compile(
    rf"(?:[\p{{Sentence_Terminal}}…‥⋯\u037e།{EMOJI}{UNMARKED}]|{THE_END})[{CLOSING}]*+(?:{LINE})?\Z"
)


def repair_mojibake(match: re.Match) -> str:
    """The text that a piece of mojibake stands for, by way of its bytes."""
    if match[0] in ("â€", "â€\ufffd"):
        return "”"
    return match[0].translate(TO_LATIN1).encode("latin-1").decode("utf-8")


def clean(text: str) -> tuple[str, bool]:
    """(the story without mojibake, entities, \\r, and white space around it and at line ends;
    whether mojibake or entities were repaired)"""
    repaired = ENTITY.sub(lambda match: html.unescape(match[0]), text)
    if not repaired.isascii():  # most stories are ASCII
        repaired = MOJIBAKE.sub(repair_mojibake, repaired)
    # A letter and its accent are one character.
    tidy = unicodedata.normalize("NFC", repaired)
    tidy = tidy.strip().replace("\r\n", "\n").replace("\r", "\n")
    tidy = "\n".join(line.rstrip(" \t") for line in tidy.split("\n"))
    return tidy, repaired != text
