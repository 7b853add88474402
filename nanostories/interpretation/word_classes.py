"""
The words of stories: which tokens make up one word, and what kind of word it is (a noun, a name,
punctuation …).

Kinds come from the word lists of nanostories/corpus/builtin_stories.py and frequent_words.txt, for
words that can be only one kind; names also come from the stories themselves
(nanostories/text.py).

>>> start = [tokenizer.end_of_text]
>>> corpus = TaggedCorpus.from_texts(["Tom saw a cat."], tokenizer, prefix=start, block_size=512)
>>> corpus.words[corpus.stories[0].words[1]], corpus.kinds[corpus.words.index("cat")]
('Tom', 'noun')
"""

import codecs
import collections
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import regex
import torch

from nanostories.corpus import instruct_headers
from nanostories.corpus.builtin_stories import NAMES, NOUNS, PRONOUNS, plural
from nanostories.corpus.builtin_stories import ROLES as READINGS  # word: (kind, base form)
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.corpus.word_forms import looks_english
from nanostories.text import MID_SENTENCE_WORD, names_among

WORD_CLASSES = ("noun", "verb", "adjective", "pronoun", "name", "punctuation")
# Words that builtin_stories.py does not list, but that are frequent in real stories.
SECTIONS = Path(__file__).with_name("frequent_words.txt").read_text(encoding="utf-8").split("#")[1:]
FUNCTION_WORDS, MORE_VERBS, MORE_NOUNS = (
    section.partition("\n")[2].split() for section in SECTIONS
)
NOUN_OF = {plural(noun): noun for noun in [*NOUNS, *MORE_NOUNS]}
LETTER = regex.compile(r"[\p{L}\p{M}]")  # or a mark, such as Indic vowel signs
START = "‹start›"  # shown for the <|endoftext|> before a story


# ---- Kinds ----
def names_in(texts: Sequence[str]) -> set[str]:
    """In lower case: the names in these texts, and those of builtin_stories.py."""
    counts = collections.Counter()
    for text in texts:
        counts.update(MID_SENTENCE_WORD.findall(text))
    names = {*names_among(counts), *map(str.lower, NAMES)}
    # "Mom" is a noun, with a capital or without
    return {name for name in names if listed_kind(name) != "noun"}


def listed_kind(word: str) -> str | None:
    kind, _ = READINGS.get(word, (None, None))
    return kind


def kind_of(word: str, names: set[str]) -> str | None:
    """One of WORD_CLASSES, or "other" for a word known to be none of them; None if it is unknown or
    could be several."""
    if word[:1].isupper() and word.lower() in names:
        return "name"
    if not any(map(str.isalnum, word)):
        return "punctuation"
    if word in PRONOUNS:
        return "pronoun"
    if word in FUNCTION_WORDS:
        return "other"
    if word in MORE_VERBS:
        return "verb"
    noun = NOUN_OF.get(word, word)  # "rocks" is treated like "rock", which may be a verb
    if noun in MORE_NOUNS:
        return "noun"
    return listed_kind(noun)


# ---- Tokens ----
def split_words(pieces: Sequence[str]) -> list[list[int]]:
    """The indices of the tokens that make up each word; whitespace belongs to no word. pieces: by
    `pieces_of`.

    A token continues the word before it if a letter follows a letter: BPE never merges across
    words.
    """
    words = []
    last = " "  # the character before the piece
    for i, piece in enumerate(pieces):
        # "" is the beginning of a character that a later token ends.
        first = "".join(pieces[i : i + 4])[:1] or " "
        if LETTER.match(last) and LETTER.match(first):
            words[-1].append(i)
        elif piece.strip():
            words.append([i])
        last = (last + piece)[-1]
    return words


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token; a character split over several tokens appears at the last of them."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    pieces = [decoder.decode(tokenizer.decode_bytes([i])) for i in ids]
    return [START if i == tokenizer.end_of_text else piece for i, piece in zip(ids, pieces)]


def visible(piece: str) -> str:
    """As in tables and pictures: without spaces around it, and never empty."""
    return piece.replace("\n", "↵").strip() or "·"


# ---- Stories ----
@dataclass
class TaggedStory:
    # (T,) as the model reads them: its prefix, then the story, cut at the end of the context
    tokens: torch.Tensor
    # (T,) the token that follows each, <|endoftext|> the last; -100 where that is of a header
    targets: torch.Tensor
    words: torch.Tensor  # (T,) which of the corpus' words the token belongs to, or -1
    ends: torch.Tensor  # (T,) bool: the last token of its word, where the model has read all of it


@dataclass
class TaggedCorpus:
    """Stories with their words, and the kind of each word."""

    stories: list[TaggedStory]
    words: list[str]  # every distinct word, lowercased unless it is a name
    kinds: list[str | None]  # each word's, by `kind_of`

    @classmethod
    def from_texts(
        cls,
        texts: Sequence[str],
        tokenizer: Tokenizer,
        prefix: Sequence[int],
        block_size: int,
        device: torch.device | str = "cpu",
    ) -> "TaggedCorpus":
        names = names_in(texts)
        numbers = {}  # of words
        stories = []
        for text in texts:
            ids = tokenizer.encode(text)
            pieces = pieces_of(tokenizer, ids)
            tokens = [*prefix, *ids]
            words = [-1] * len(tokens)
            ends = [False] * len(tokens)
            for members in split_words(pieces):
                form = "".join(pieces[i] for i in members).strip()
                if kind_of(form, names) != "name":
                    form = form.lower()
                number = numbers.setdefault(form, len(numbers))
                for i in members:
                    words[len(prefix) + i] = number
                ends[len(prefix) + members[-1]] = True
            targets = [*tokens[1:], tokenizer.end_of_text]
            headed = instruct_headers.read(text)
            if headed:  # it is read, but does not count
                n = len(prefix) + len(tokenizer.encode(headed.header)) - 1
                targets[:n] = [-100] * n
            columns = (tokens, targets, words, ends)
            story = [torch.tensor(column[:block_size], device=device) for column in columns]
            stories.append(TaggedStory(*story))
        kinds = [kind_of(word, names) for word in numbers]
        if not looks_english(texts):  # the lists are English
            kinds = [kind if kind == "punctuation" else "other" for kind in kinds]
        return cls(stories, list(numbers), kinds)

    def kind_flags(self) -> np.ndarray:
        """(WORD_CLASSES, words) bool: which words are of each kind."""
        return np.array(WORD_CLASSES)[:, None] == np.array(self.kinds, dtype=str)
