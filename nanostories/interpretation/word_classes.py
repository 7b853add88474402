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
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from nanostories.corpus.builtin_stories import NAMES, NOUNS, PRONOUNS, ROLES, plural
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.corpus.word_forms import looks_english
from nanostories.text import MID_SENTENCE_WORD, names_among

KINDS = ("noun", "verb", "adjective", "pronoun", "name", "punctuation")
# Words that builtin_stories.py does not list, but that are frequent in real stories.
SECTIONS = Path(__file__).with_name("frequent_words.txt").read_text(encoding="utf-8").split("#")[1:]
FUNCTION_WORDS, MORE_VERBS, MORE_NOUNS = (
    section.partition("\n")[2].split() for section in SECTIONS
)
NOUN_OF = {plural(noun): noun for noun in [*NOUNS, *MORE_NOUNS]}
START = "‹start›"  # shown for the <|endoftext|> before a story


def names_in(texts: Sequence[str]) -> frozenset[str]:
    """In lower case: the names in these texts, and those of builtin_stories.py."""
    counts = collections.Counter()
    for text in texts:
        counts.update(MID_SENTENCE_WORD.findall(text))
    nouns = {
        word for word, (kind, _) in ROLES.items() if kind == "noun"
    }  # "Mom" is a noun, with a capital or without
    return frozenset([*names_among(counts), *map(str.lower, NAMES)]) - nouns


def kind_of(word: str, names: frozenset[str]) -> str | None:
    """One of KINDS, or "other" for a word known to be none of them; None if it is unknown or could
    be several."""
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
    return "noun" if noun in MORE_NOUNS else ROLES.get(noun, [None])[0]


def letters(text: bytes) -> list[bool]:
    """For each byte, whether it is part of a letter or of a mark, such as Indic vowel signs. A
    token may end within a character of several bytes."""
    characters = text.decode("utf-8", "surrogateescape")
    is_letter = {
        char: char.isalpha() or unicodedata.category(char).startswith("M")
        for char in set(characters)
    }
    return [is_letter[char] for char in characters for _ in char.encode("utf-8", "surrogateescape")]


def split_words(pieces: Sequence[bytes]) -> list[list[int]]:
    """The indices of the tokens that make up each word; whitespace and <|endoftext|> belong to no
    word.

    A token continues the word before it if a letter follows a letter: BPE never merges across
    words.
    """
    is_letter, words, start = letters(b"".join(pieces)), [], 0
    for i, piece in enumerate(pieces):
        if piece.strip():
            continues = (
                is_letter[start] and is_letter[start - 1] or piece[0] & 0xC0 == 0x80
            )  # within a character
            if words and words[-1][-1] == i - 1 and continues:
                words[-1].append(i)
            else:
                words.append([i])
        start += len(piece)
    return words


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token; a character split over several tokens appears at the last of them."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    return [
        START if i == tokenizer.end_of_text else decoder.decode(tokenizer.decode_bytes([i]))
        for i in ids
    ]


@dataclass
class Story:
    tokens: (
        torch.Tensor
    )  # (T,) as the model reads them: its prefix, then the story, cut at the end of the context
    targets: torch.Tensor  # (T,) the token that follows each; <|endoftext|> is the last
    words: torch.Tensor  # (T,) which of the corpus' words the token belongs to, or -1
    ends: torch.Tensor  # (T,) bool: the last token of its word, where the model has read all of it


@dataclass
class Batch(Story):
    """Stories of similar length, (B, T) each, padded at the end, where a causal model does not see
    it."""

    index: list[int]  # (B,) their indices in the corpus

    @property
    def not_padding(self) -> torch.Tensor:
        """(B, T) bool"""
        return self.targets >= 0


PADDING = dict(tokens=0, targets=-100, words=-1, ends=0)


@dataclass
class TaggedCorpus:
    """Stories with their words, and the kind of each word."""

    stories: list[Story]
    words: list[str]  # every distinct word, lowercased unless it is a name
    kinds: list[str | None]  # each word's, by `kind_of`

    @classmethod
    def from_texts(
        cls, texts: Sequence[str], tokenizer: Tokenizer, prefix: Sequence[int], block_size: int
    ) -> "TaggedCorpus":
        names, numbers, stories = names_in(texts), {}, []
        for text in texts:
            ids = [*prefix, *tokenizer.encode(text), tokenizer.end_of_text]
            pieces = [
                b"" if i == tokenizer.end_of_text else tokenizer.decode_bytes([i]) for i in ids
            ]
            words, ends = torch.full((len(ids),), -1), torch.zeros(len(ids), dtype=torch.bool)
            for members in split_words(pieces):
                form = b"".join(pieces[i] for i in members).decode(errors="replace").strip()
                form = form if form[:1].isupper() and form.lower() in names else form.lower()
                words[members] = numbers.setdefault(form, len(numbers))
                ends[members[-1]] = True
            n = min(len(ids) - 1, block_size)
            tokens = torch.tensor(ids)
            stories.append(Story(tokens[:n], tokens[1 : n + 1], words[:n], ends[:n]))
        kinds = [kind_of(word, names) for word in numbers]
        if not looks_english(texts):  # the lists are English
            kinds = [kind if kind == "punctuation" else "other" for kind in kinds]
        return cls(stories, list(numbers), kinds)

    def is_kind(self, kind: str) -> torch.Tensor:
        """(words,) bool: which words are of this kind."""
        return torch.tensor([each == kind for each in self.kinds], dtype=torch.bool)

    def batches(
        self, n: int, device: torch.device, tokens: int = 4096, label: str | None = None
    ) -> Iterator[Batch]:
        """The first n stories, the longest first, about this many tokens at a time. label: of a
        progress bar."""
        waiting = sorted(range(n), key=lambda i: -len(self.stories[i].tokens))
        bar = tqdm(desc=label, total=n, unit="story", disable=None if label else True, delay=1)
        while waiting:
            size = max(1, tokens // len(self.stories[waiting[0]].tokens))
            index, waiting = waiting[:size], waiting[size:]
            stories = [self.stories[i] for i in index]
            padded = [
                pad_sequence(
                    [getattr(story, field.name) for story in stories], True, PADDING[field.name]
                ).to(device)
                for field in fields(Story)
            ]
            yield Batch(*padded, index)
            bar.update(len(index))
        bar.close()
