"""
Does rouge.py find copies? Plants some among the completions of a run, and counts recall and false alarms.

$ python tests/planted.py out/cpu_8m                    # writes out/cpu_8m-planted/, as rouge.py does
"""

import json
import random
import re
import sys
from pathlib import Path

from conftest import ROOT

sys.path.insert(0, str(ROOT))

import rouge
from common.tables import table_text
from corpus.builtin_stories import NAMES, NOUNS
from generation.prompts import cut_story
from generation.samples_file import write_rows
from novelty.compare_texts import read_completions
from novelty.corpus_words import Stories, open_stories
from novelty.rouge_analysis import training_data

EACH = 100  # planted of each kind


def replace_words(text: str, words: set[str], others: list[str], rng: random.Random) -> str:
    """Replaces each of these words by one of the others, the same one wherever it occurs."""
    partner: dict[str, str] = {}

    def other(match: re.Match) -> str:
        word = match[0].lower()
        if word not in words:
            return match[0]
        new = partner.setdefault(word, rng.choice(others).lower())
        return new.capitalize() if match[0][0].isupper() else new

    return re.sub("[A-Za-z]+", other, text)


def shuffled(parts: list[str], rng: random.Random) -> str:
    return " ".join(rng.sample(parts, len(parts)))


def ways_to_copy(stories: Stories, honest: list[str], seed: int = 0) -> dict:
    """How the second half of a training story is changed before it is planted. honest: other completions."""
    rng = random.Random(seed)
    names, nouns = set(stories.names), set(NOUNS)
    words = sorted(stories.vocabulary)

    def rename(text: str) -> str:
        return replace_words(text, names, sorted(names), rng)

    def replace_some(text: str) -> str:
        return re.sub("[A-Za-z]+", lambda m: rng.choice(words) if rng.random() < 0.1 else m[0], text)

    def interleave(text: str) -> str:
        return re.sub(r"((?:\S+\s+){4})", r"\1very ", text)

    def passage(text: str, n: int) -> str:
        """n words of it in the middle of an honest completion."""
        words, other = text.split(), rng.choice(honest).split()
        start = rng.randrange(max(1, len(words) - n))
        return " ".join([*other[: len(other) // 2], *words[start : start + n], *other[len(other) // 2 :]])

    def half(text: str) -> str:
        return passage(text, len(text.split()) // 2)

    return {
        "verbatim": str,
        "half of it, within an honest completion": half,
        "50 words of it, within an honest completion": lambda text: passage(text, 50),
        "25 words of it, within an honest completion": lambda text: passage(text, 25),
        "names replaced": rename,
        "names replaced by unknown ones": lambda text: replace_words(text, names, [name + "o" for name in NAMES], rng),
        "names and nouns replaced": lambda text: replace_words(rename(text), nouns, sorted(nouns), rng),
        "sentences shuffled": lambda text: shuffled(re.split(r"(?<=[.!?])\s+", text.strip()), rng),
        "every tenth word replaced": replace_some,
        "in the present tense": in_present_tense,
        "with 'very' as every fifth word": interleave,
        "words shuffled": lambda text: shuffled(text.split(), rng),
        "nothing of it, but 100 made-up words": lambda text: " ".join(made_up_word(rng) for _ in range(100)),
    }


PRESENT = dict(
    was="is", were="are", had="has", did="does", said="says", went="goes", saw="sees", felt="feels", could="can"
)
PRESENT |= dict(came="comes", took="takes", made="makes", found="finds", got="gets", ran="runs", thought="thinks")


def in_present_tense(text: str) -> str:
    """As well as a few lines of Python can: was -> is, played -> plays."""
    text = re.sub(r"\b(" + "|".join(PRESENT) + r")\b", lambda match: PRESENT[match[0]], text)
    return re.sub(r"\b([a-z]{2,})ed\b", r"\1s", text)


def made_up_word(rng: random.Random) -> str:
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(4))


def plant(rows: list[dict], stories: Stories, each: int = EACH, seed: int = 0) -> list[dict]:
    """The rows, followed by `each` copies of every kind, from stories drawn at random, each a prompt of its own."""
    rng, planted = random.Random(seed), []
    number = max((row["prompt_index"] for row in rows), default=-1)
    for kind, change in ways_to_copy(stories, [row["completion"] for row in rows], seed).items():
        for story in rng.sample(range(len(stories)), each):
            number += 1
            prompt = cut_story(stories.text(story), 0.5)
            row = dict(prompt_index=number, sample_index=0, prompt=prompt.text, planted=kind, story=story)
            planted.append(row | dict(completion=change(prompt.reference)))
    return rows + planted


def count_flagged(rows: list[dict], details: list[dict]) -> dict[str, tuple[int, int, int]]:
    """For each kind: how many are flagged, how many of those with the right story, how many there are."""
    counts: dict[str, list] = {}
    for row, detail in zip(rows, details):
        flagged = detail["flag"] != ""
        counts.setdefault(row.get("planted", "honest"), []).append(
            (flagged, flagged and detail["flag_story"] == row.get("story"))
        )
    return {kind: (*(sum(column) for column in zip(*flags)), len(flags)) for kind, flags in counts.items()}


def main() -> None:
    run = Path(sys.argv[1])
    data = Path(sys.argv[2]) if len(sys.argv) > 2 else training_data(run)
    rows = plant(read_completions(run / "samples.jsonl"), open_stories(data))
    there = run.with_name(run.name + "-planted")
    write_rows(there / "samples.jsonl", rows)
    sys.argv = ["rouge.py", str(there), "--data", str(data)]
    rouge.main()
    details = json.loads((there / "rouge.json").read_text())["details"]
    table = [[kind, *map(str, counts)] for kind, counts in count_flagged(rows, details).items()]
    print("\n" + table_text(["planted", "flagged", "right story", "of"], table))


if __name__ == "__main__":
    main()
