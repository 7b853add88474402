"""
Does rouge.py find copies? Plants some among the completions of a run, and counts recall and false
alarms. And corpora of a few stories, written as prepare.py writes them, and lines of a set.

# writes out/cpu_8m-planted/, as rouge.py does
$ python tests/planted.py out/cpu_8m data/tinystories
"""

import collections
import json
import random
import re
import sys
from pathlib import Path

from conftest import ROOT

sys.path.insert(0, str(ROOT))

import rouge
from nanostories.corpus.builtin_stories import NAMES, NOUNS
from nanostories.corpus.token_files import FORMAT
from nanostories.corpus.tokenizer import gpt2
from nanostories.files import sha256_of
from nanostories.generation.prompts import cut_story
from nanostories.generation.samples_file import read_rows, write_rows
from nanostories.novelty.words import WordCorpus, open_corpus
from nanostories.tables import read_table, table_text

EACH = 100  # planted of each kind


def write_corpus(directory: Path, training: list[str], validation: list[str], **facts) -> Path:
    directory.mkdir(parents=True)
    tokenizer = gpt2()
    meta = dict(format=FORMAT, source=["tests"], splits={}, cleaning={}) | facts
    meta |= dict(vocab_size=tokenizer.vocab_size, vocabulary=tokenizer.vocabulary)
    for split, stories in dict(train=training, val=validation).items():
        tokens = tokenizer.encode_stories(stories)
        path = directory / f"{split}.bin"
        tokens.astype("<u2").tofile(path)
        meta["splits"][split] = dict(
            stories=len(stories),
            tokens=len(tokens),
            bytes=len("".join(stories).encode()),
            sha256=sha256_of(path),
        )
    (directory / "meta.json").write_text(json.dumps(meta))
    return directory


def rows_of(completions: list[str], stories: list[str], n: int) -> list[dict]:
    """Lines of a set: n completions of the first half of each story."""
    rows = []
    for i in range(len(completions) // n):
        prompt = cut_story(stories[i], 0.5)
        facts = dict(prompt_index=i, prompt=prompt.text, reference=prompt.reference)
        rows += [facts | dict(sample_index=j, completion=completions[n * i + j]) for j in range(n)]
    return rows


def endings(stories: list[str]) -> list[str]:
    return [cut_story(story, 0.5).reference for story in stories]


def replace_words(text: str, words: set[str], others: list[str], rng: random.Random) -> str:
    """Replaces each of these words by one of the others, the same one wherever it occurs."""
    partner = {word: rng.choice(others).lower() for word in sorted(words)}

    def other(match: re.Match) -> str:
        word = match[0]
        new = partner.get(word.lower(), word)
        return new.capitalize() if word[0].isupper() else new

    return re.sub("[A-Za-z]+", other, text)


def ways_to_copy(corpus: WordCorpus, honest: list[str], rng: random.Random) -> dict:
    """How the second half of a training story is changed before it is planted. honest: other
    completions."""
    names = set(corpus.names)
    nouns = set(NOUNS)
    words = sorted(corpus.vocabulary)

    def shuffled(parts: list[str]) -> str:
        return " ".join(rng.sample(parts, len(parts)))

    def rename(text: str) -> str:
        return replace_words(text, names, sorted(names), rng)

    def passage(text: str, n: int = 0) -> str:
        """n words of it, or half of them, in the middle of an honest completion."""
        words = text.split()
        n = n or len(words) // 2
        other = rng.choice(honest).split()
        start = rng.randrange(max(1, len(words) - n))
        middle = len(other) // 2
        other[middle:middle] = words[start : start + n]
        return " ".join(other)

    def made_up_word() -> str:
        return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(4))

    return {
        "verbatim": str,
        "half of it, within an honest completion": passage,
        "50 words of it, within an honest completion": lambda text: passage(text, 50),
        "25 words of it, within an honest completion": lambda text: passage(text, 25),
        "names replaced": rename,
        "names replaced by unknown ones": lambda text: replace_words(
            text, names, [name + "o" for name in NAMES], rng
        ),
        "names and nouns replaced": lambda text: replace_words(
            rename(text), nouns, sorted(nouns), rng
        ),
        "sentences shuffled": lambda text: shuffled(re.split(r"(?<=[.!?])\s+", text.strip())),
        "every tenth word replaced": lambda text: re.sub(
            "[A-Za-z]+", lambda match: rng.choice(words) if rng.random() < 0.1 else match[0], text
        ),
        "with 'very' as every fifth word": lambda text: re.sub(
            r"((?:\S+\s+){4})", r"\1very ", text
        ),
        "words shuffled": lambda text: shuffled(text.split()),
        "nothing of it, but 100 made-up words": lambda text: " ".join(
            made_up_word() for _ in range(100)
        ),
    }


def plant(rows: list[dict], corpus: WordCorpus, each: int = EACH) -> list[dict]:
    """The rows, followed by `each` copies of every kind, from stories drawn at random, each a
    prompt of its own."""
    rng = random.Random(0)
    planted = []
    first = max(row["prompt_index"] for row in rows) + 1
    for kind, change in ways_to_copy(corpus, [row["completion"] for row in rows], rng).items():
        for story in rng.sample(range(len(corpus)), each):
            prompt = cut_story(corpus.text(story), 0.5)
            row = dict(prompt_index=first + len(planted), sample_index=0, prompt=prompt.text)
            row |= dict(completion=change(prompt.reference), planted=kind, source=story)
            planted.append(row)
    return rows + planted


def count_flagged(rows: list[dict], run: Path) -> dict[str, list[int]]:
    """From the run's rouge.csv, for each kind: how many are flagged, how many of those with the
    right story, of all."""
    found = {}
    for row in read_table(run / "rouge.csv"):
        found[row["prompt_index"], row["sample_index"]] = row
    counts = collections.defaultdict(lambda: [0, 0, 0])
    for row in rows:
        flagged = found[str(row["prompt_index"]), str(row["sample_index"])]
        count = counts[row.get("planted", "honest")]
        if flagged["flag"]:
            count[0] += 1
            count[1] += flagged["story"] == str(row.get("source"))
        count[2] += 1
    return counts


def main() -> None:
    run = Path(sys.argv[1])
    data = Path(sys.argv[2])
    rows = plant(list(read_rows(run / "samples/eval.jsonl").values()), open_corpus(data))
    there = run.with_name(run.name + "-planted")
    write_rows(there / "samples/eval.jsonl", rows)
    sys.argv = ["rouge.py", str(there), "--data", str(data)]
    rouge.main()
    table = [[kind, *map(str, counts)] for kind, counts in count_flagged(rows, there).items()]
    print("\n" + table_text(["planted", "flagged", "right story", "of"], table))


if __name__ == "__main__":
    main()
