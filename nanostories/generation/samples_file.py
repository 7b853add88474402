"""
samples/NAME.jsonl: a set of stories, written by sample.py, read by grade.py, rouge.py and
instruct.py, one completion per line. Its name says what was continued: eval, train, unseen, prompt,
or the name of a file of prompts. Samples at temperature 1 lie in the run's directory, those at any
other temperature or by beam search in a directory of their own below it.

# the third completion of the first prompt
>>> read_rows(set_file(Path("out/demo"), "eval"))[0, 2]["completion"]
' cat named Tom.'
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nanostories.cli import UserError
from nanostories.files import append_json, read_json_lines, write_bytes
from nanostories.generation.prompts import Key, Prompt, Sampling

EVAL = "eval"  # validation stories, continued
TRAIN = "train"  # training stories
UNSEEN = "unseen"  # headers of words that the training stories lack
PROMPT = "prompt"  # one prompt from the command line
SET_NAMES = (EVAL, TRAIN, UNSEEN, PROMPT)  # others are named after their file of prompts
TYPES = dict(prompt_index=int, sample_index=int, prompt=str, completion=str, reference=str | None)


@dataclass
class Samples:
    """The completions of these prompts by one model, sampled in one way.

    Until `finish` writes them to NAME.jsonl in the order of the prompts, each is appended to
    NAME.jsonl.part as it ends, so that a kill loses none. What an earlier call left in either file
    is kept.
    """

    path: Path
    model: str
    settings: dict  # in each row
    prompts: Mapping[int, Prompt]

    def __post_init__(self):
        self.part = self.path.with_name(self.path.name + ".part")

    def read(self) -> None:
        """What is there. UserError if a file has stories that were sampled otherwise."""
        self.rows = read_rows(self.path)
        self.in_set = set(self.rows)  # the keys of those in NAME.jsonl; the others are in the .part
        for row in read_json_lines(self.part):
            self.rows[row["prompt_index"], row["sample_index"]] = row
        for (i, _), row in self.rows.items():
            expected = self.settings
            if i in self.prompts:
                expected = expected | self.prompts[i].row()
            differing = [name for name, value in expected.items() if row.get(name) != value]
            if differing:
                raise UserError(
                    f"{self.path} or its .part has stories with other settings"
                    f" ({', '.join(differing)}): delete or rename the file, or give --out another"
                    " directory"
                )

    def missing(self, n: int) -> dict[Key, str]:
        """The prompts of those of n completions each that are not there."""
        wanted = numbered(self.prompts, n)
        return {key: prompt for key, prompt in wanted.items() if key not in self.rows}

    def add(self, key: Key, completion: str, finished: bool, facts: Mapping) -> None:
        row = dict(model=self.model) | self.settings
        row |= dict(prompt_index=key[0], sample_index=key[1]) | self.prompts[key[0]].row()
        row |= dict(completion=completion, finished=finished) | facts
        append_json(self.part, row)
        self.rows[key] = row

    def finish(self, n: int) -> None:
        """Makes the set of n completions of each prompt, without the prompts that have fewer (an
        API refused them). A set that has all of these already, among others, stays as it is.

        So every prompt of a set has equally many. All other completions stay in the .part.
        """
        incomplete = {i for i, _ in self.missing(n)}
        wanted = {key for key in numbered(self.prompts, n) if key[0] not in incomplete}
        if not wanted <= self.in_set:
            write_rows(self.part, self.rows.values())  # a kill after the next line loses none
            write_rows(self.path, [self.rows[key] for key in sorted(wanted)])
            self.in_set = wanted
        others = [row for key, row in self.rows.items() if key not in self.in_set]
        if others:
            write_rows(self.part, others)
        else:
            self.part.unlink(missing_ok=True)


def numbered(prompts: Mapping[int, Prompt], n: int) -> dict[Key, str]:
    """{(number of the prompt, number of the completion): the prompt} of n completions of each."""
    wanted = {}
    for i, prompt in prompts.items():
        for j in range(n):
            wanted[i, j] = prompt.text
    return wanted


def set_file(directory: Path, name: str) -> Path:
    return directory / "samples" / f"{name}.jsonl"


def result_name(kind: str, name: str) -> str:
    """Without its ending: grades for the set eval, grades-beginnings for the set beginnings"""
    return kind if name == EVAL else f"{kind}-{name}"


def samples_directory(run: Path, sampling: Sampling) -> Path:
    """out/demo -> out/demo/temperature-0.3, out/demo/temperature-0.3-best_of-8 or out/demo/beams-4;
    out/demo itself at temperature 1"""
    if sampling.beams > 1:
        return run / f"beams-{sampling.beams}"
    parts = []
    if sampling.temperature != 1:
        parts.append(f"temperature-{sampling.temperature:g}")
    if sampling.best_of > 1:
        parts.append(f"best_of-{sampling.best_of}")
    return run / "-".join(parts)


def run_of_samples(directory: Path) -> Path:
    """out/demo for out/demo/temperature-0.3, and for out/demo itself"""
    if directory.name.startswith(("temperature-", "beams-", "best_of-")):
        return directory.parent
    return directory


def read_rows(path: Path) -> dict[Key, dict]:
    """{(prompt_index, sample_index): row}; {} if there is no file. UserError names a line that is
    no completion."""
    rows = {}
    if not path.exists():
        return rows
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row |= dict(prompt="", reference=None) | row  # where these are missing
            valid = all(isinstance(row.get(name), kind) for name, kind in TYPES.items())
        except (ValueError, TypeError):
            valid = False
        if not valid:
            raise UserError(
                f"{path}: line {number} is no completion by sample.py: delete it, or rename the"
                " file"
            )
        rows[row["prompt_index"], row["sample_index"]] = row
    return rows


def write_rows(path: Path, rows: Iterable[dict]) -> None:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    write_bytes(path, "".join(lines).encode())
