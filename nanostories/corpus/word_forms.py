"""
The inflected forms of words, and which summary fits a story by its words: rules and lists, no
dictionary.

>>> uses_word("He was running.", "run"), sorted(content_words("The frog was hiding."))
(True, ['frog', 'hide'])
"""

import collections
import functools
import itertools
import math
import re
from collections.abc import Collection, Iterable

import regex

from nanostories.corpus.builtin_stories import (
    ADJECTIVES,
    NOUNS,
    PRONOUNS,
    VERBS,
    ing,
    participle,
    past,
    plural,
    read_sections,
)

LISTS = read_sections("word_forms.txt")
IRREGULAR = {forms.split()[0]: forms.split() for forms in LISTS["irregular forms"].split(",")}
# Scripts that put no spaces between words, or join particles to them
SCRIPTS = "Han Hiragana Katakana Thai Lao Khmer Myanmar Hangul Arabic Hebrew"
WITHIN_WORDS = regex.compile("[" + "".join(rf"\p{{{name}}}" for name in SCRIPTS.split()) + "]")
STOP_WORDS = {*LISTS["stop words"].split(), *PRONOUNS}
# Quotation marks of many languages, a dash before a line, or single marks around what ends like a
# sentence or a phrase
SPEECH = regex.compile(r"""(?m)["“”«»„「」]|^[ ]*[—–]|(?<![\p{L}\d])['‘][^\n]{1,300}?[,.!?]['’]""")


@functools.cache
def inflections(word: str) -> frozenset[str]:
    """All forms of `word` as a noun, verb or adjective; forms that nobody uses do no harm."""
    doubled = word + word[-1]
    forms = {
        word,
        *IRREGULAR.get(word, ()),
        plural(word),
        past(word),
        participle(word),
        ing(word),
        doubled + "ing",
    }
    for stem in (re.sub(r"(?<![aeiou])y$", "i", word.removesuffix("e")), doubled):
        forms |= {stem + ending for ending in ("er", "est", "ed", "es")}
    return frozenset(forms | {re.sub(r"fe?$", "ves", word)})


def uses_word(text: str, word: str) -> bool:
    """Whether any form of the word is in the text. Forms are known for words of ASCII alone."""
    if WITHIN_WORDS.search(word):
        return word.lower() in text.lower()
    forms = "|".join(map(regex.escape, inflections(word.lower()) if word.isascii() else [word]))
    return regex.search(rf"(?<![\w\p{{M}}])({forms})(?![\w\p{{M}}])", text, regex.I) is not None


def looks_english(texts: Iterable[str]) -> bool:
    """Whether a quarter of the words are English function words: of English stories half of them
    are, of German 3%."""
    words = re.findall(r"[^\W\d_]+", " ".join(itertools.islice(texts, 100)).lower())
    return sum(word in STOP_WORDS for word in words) >= len(words) / 4


def language_warning(texts: Iterable[str], consequence: str) -> str:
    """ "" for English texts."""
    return (
        "" if looks_english(texts) else f"WARNING these stories do not look English: {consequence}"
    )


KNOWN = (*VERBS, *ADJECTIVES, *NOUNS)
BASE_FORMS = {form: word for word in KNOWN for form in inflections(word)} | {
    word: word for word in KNOWN
}


@functools.cache
def content_words(text: str) -> frozenset[str]:
    """The words of a text that are not stop words, in their base forms."""
    words = re.findall(r"[a-z]+", text.lower().replace("'s", ""))
    bases = (BASE_FORMS.get(word) or re.sub(r"(?<=...)(ing|ed|e?s)$", "", word) for word in words)
    return frozenset(base for base in bases if base not in STOP_WORDS and len(base) > 1)


def is_nearest(summary: str, story: str, summaries: Collection[str]) -> float:
    """1 if the story has the largest share of this summary's content words among all summaries; 1 /
    k if k tie. A word that n of N summaries have weighs log(N / n)."""
    counts = collections.Counter(itertools.chain.from_iterable(map(content_words, summaries)))
    words, shares = content_words(story), {}
    for other in summaries:  # fsum is exact, so ties are ties, whatever the order of the words
        weights = {word: math.log(len(summaries) / counts[word]) for word in content_words(other)}
        shares[other] = math.fsum(weights[word] for word in weights.keys() & words) / (
            math.fsum(weights.values()) or 1
        )
    most = max(shares.values())
    return (shares[summary] == most) / list(shares.values()).count(most)


def ends_badly(text: str) -> bool:
    """Whether it has one of the seven sentences by which built-in plots end badly (@BadEnding); it
    knows no others."""
    return re.search("|".join(LISTS["bad endings"].splitlines()), text, re.I) is not None
