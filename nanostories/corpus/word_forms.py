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
    read_toml,
    verb_forms,
)
from nanostories.text import SPACELESS

LISTS = read_toml("word_forms.toml")
STOP_WORDS = {*LISTS["stop_words"].split(), *PRONOUNS}
# Of scripts that put no spaces between words, or join particles to them
NO_WORD_BOUNDARIES = regex.compile(rf"[{SPACELESS}\p{{Hangul}}\p{{Arabic}}\p{{Hebrew}}]")
# Quotation marks of many languages, a dash before a line or a sentence, or single marks around what
# ends like a sentence or a phrase
SPEECH = regex.compile(
    r"""(?m)["“”«»„「」]|(?:^|[.!?…])[ ]*[—–]|(?<![\p{L}\d])['‘][^\n]{1,300}?[,.!?]['’]"""
)


@functools.cache
def inflections(word: str) -> frozenset[str]:
    """All forms of `word` as a noun, verb or adjective; forms that nobody uses do no harm."""
    doubled = word + word[-1]
    stem = re.sub(r"(?<![aeiou])y$", "i", word.removesuffix("e"))
    forms = verb_forms(word)
    forms.update(LISTS["irregular_forms"].get(word, "").split())
    forms.add(doubled + "ing")
    forms.add(re.sub(r"fe?$", "ves", word))
    for ending in ("er", "est", "ed", "es"):
        forms.add(stem + ending)
        forms.add(doubled + ending)
    return frozenset(forms)


def uses_word(text: str, word: str) -> bool:
    """Whether any form of the word is in the text. Forms are known for words of ASCII alone."""
    if NO_WORD_BOUNDARIES.search(word):
        return word.lower() in text.lower()
    forms = inflections(word.lower()) if word.isascii() else [word]
    any_form = "|".join(regex.escape(form) for form in forms)
    pattern = rf"(?<![\w\p{{M}}])({any_form})(?![\w\p{{M}}])"
    return regex.search(pattern, text, regex.IGNORECASE) is not None


def plain(text: str) -> str:
    """On one line, with straight quotes."""
    return " ".join(text.translate(str.maketrans("“”‘’", "\"\"''")).split())


def has_sentence(text: str, sentence: str) -> bool:
    """Verbatim, quotation marks and line breaks aside."""
    return plain(sentence) in plain(text)


def looks_english(texts: Iterable[str]) -> bool:
    """Whether a quarter of the words are English function words: of English stories half of them
    are, of German 3%."""
    words = re.findall(r"[^\W\d_]+", " ".join(itertools.islice(texts, 100)).lower())
    return sum(word in STOP_WORDS for word in words) >= len(words) / 4


# ---- Which summary fits a story ----
KNOWN_WORDS = (*VERBS, *ADJECTIVES, *NOUNS)
BASE_FORMS = {}  # a form of several words counts as that of the last
for word in KNOWN_WORDS:
    for form in inflections(word):
        BASE_FORMS[form] = word
for word in KNOWN_WORDS:
    BASE_FORMS[word] = word


@functools.cache
def content_words(text: str) -> frozenset[str]:
    """The words of a text that are not stop words, in their base forms."""
    words = set()
    for word in re.findall(r"[a-z]+", text.lower().replace("'s", "")):
        base = BASE_FORMS.get(word) or re.sub(r"(?<=...)(ing|ed|e?s)$", "", word)
        if base not in STOP_WORDS and len(base) > 1:
            words.add(base)
    return frozenset(words)


def is_nearest(summary: str, story: str, summaries: Collection[str]) -> float:
    """1 if the story has the largest share of this summary's content words among all summaries; 1 /
    k if k tie. A word that n of N summaries have weighs log(N / n)."""
    counts = collections.Counter()
    for other in summaries:
        counts.update(content_words(other))
    weights = {word: math.log(len(summaries) / n) for word, n in counts.items()}
    shares = {}
    for other in summaries:
        words = content_words(other)
        # fsum is exact, so ties are ties, whatever the order of the words.
        total = math.fsum(weights[word] for word in words)
        shared = math.fsum(weights[word] for word in words & content_words(story))
        shares[other] = shared / (total or 1)
    largest = max(shares.values())
    n_nearest = list(shares.values()).count(largest)
    return 1 / n_nearest if shares[summary] == largest else 0.0


def ends_badly(text: str) -> bool:
    """Whether it has one of the seven sentences by which built-in plots end badly (@BadEnding); it
    knows no others."""
    return re.search("|".join(LISTS["bad_endings"]), text, re.IGNORECASE) is not None
