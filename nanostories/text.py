"""
Words, sentences and names in a text of any script.

>>> words_of("Don't stop, Zoë!")
['don', 't', 'stop', 'zoë']
>>> split_sentences("Tom ran. He saw Mia!")
['Tom ran.', 'He saw Mia!']
>>> names_among(collections.Counter(MID_SENTENCE_WORD.findall("Then Tom ran, and Tom saw a cat.")))
['tom']
"""

import collections

import regex

# Scripts without spaces between words: there, each character counts as a word.
SPACELESS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
# Letters, marks and digits.
WORD = regex.compile(rf"(?V1)[{SPACELESS}]\p{{M}}*|[[\p{{L}}\p{{M}}\p{{N}}]--[{SPACELESS}]]+")
NO_TITLE = r"(?<!\b(?:Mr|Mrs|Ms|Dr)\.?)"  # their periods end no sentence
# Chinese and Japanese have no space between sentences.
BETWEEN_SENTENCES = regex.compile(
    rf"""(?<=\p{{Sentence_Terminal}}){NO_TITLE}[ ]"""
    r"""|(?<=\p{Sentence_Terminal}["”'’])[ ](?=[A-Z"“'‘])"""
    r"""|(?<=[。！？])(?![。！？」』])|\n"""
)
# Final punctuation, perhaps with a quote, before whitespace and a capital, perhaps behind a dash.
# Where letters have no case, a quote ends no sentence: "he said" may follow.
SENTENCE_END = regex.compile(
    rf"""{NO_TITLE}[\p{{Sentence_Terminal}}…]+"""
    r"""(?:["'”’)」』]*(?=\s+(?:[–—-]\s*)?["'“‘(]?\p{Lu}|\s*$)|(?=\s+["'“‘(]?\p{Lo}))"""
    r"""|[。！？…]+(?![」』])"""
)
DOUBLE_QUOTES = regex.compile('["“”„「」]')
# An apostrophe within a word is neither of these.
OPENING_SINGLE_QUOTE = regex.compile(r"(?<![\p{L}\d])['‘]")
CLOSING_SINGLE_QUOTE = regex.compile(r"(?<=[,.!?])['’]")
# Of an English chat model, by one of its first two sentences. Of 35,093 TinyStories, none begins
# like this.
REFUSAL = regex.compile(
    r"""([^.!?"“”]*[.!?]\s+)?[^.!?"“”]*\b(I|AI|language model)\b[^.!?"“”]*\b(sorry|apologi[sz]e|"""
    r"""can ?not|can[’']t|won[’']t|unable|not able|decline|refuse|comfortable)\b"""
)
# After a lower-case word or a comma: where a sentence or a quotation begins, a capital says
# nothing.
MID_SENTENCE_WORD = regex.compile(r"(?<=[\p{Ll},] )\p{L}[\p{L}\p{M}\p{N}]*")


def words_of(text: str) -> list[str]:
    """In lower case. For English, the words of rouge-score without its stemmer."""
    return WORD.findall(text.lower())


def split_sentences(text: str) -> list[str]:
    """The sentences of a text in any script; without those that cut through somebody's speech."""
    pieces = BETWEEN_SENTENCES.split(text)
    return [piece for piece in pieces if piece.strip() and has_whole_quotations(piece)]


def sentences(text: str, preceding: str = "") -> list[str]:
    """All of the text in sentences, each with the white space before it. Speech in double quotes is
    never split. preceding: the text before it, which may break off within quotes."""
    pieces = []
    start = 0
    for match in SENTENCE_END.finditer(text):
        quotes = DOUBLE_QUOTES.findall(preceding + text[: match.end()])
        if len(quotes) % 2 == 0:
            pieces.append(text[start : match.end()])
            start = match.end()
    if text[start:].strip():
        pieces.append(text[start:])
    return pieces


def has_whole_quotations(text: str) -> bool:
    for opening, closing in ("“”", "「」", "『』"):
        if text.count(opening) != text.count(closing):
            return False
    n_opening = len(OPENING_SINGLE_QUOTE.findall(text))
    n_closing = len(CLOSING_SINGLE_QUOTE.findall(text))
    return n_opening == n_closing and text.count('"') % 2 == 0


def names_among(counts: collections.Counter[str]) -> list[str]:
    """The words that are capitalized more often than not, in lower case. "I" is not a name.

    counts: how often each word occurs in mid-sentence (MID_SENTENCE_WORD), as it is spelled.
    """
    surplus = collections.Counter()  # how much more often a word is capitalized
    for word, n in counts.items():
        surplus[word.lower()] += n if word[0].isupper() else -n
    return [word for word, n in surplus.items() if n > 0 and len(word) > 1]
