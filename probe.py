"""
What a model knows, can work out and keeps in mind: prompts with known answers, so that no judge is needed.

$ python probe.py out/                                              # every run below it: out/probe.csv, out/probe.html
$ python probe.py out/demo --model hf:roneneldan/TinyStories-8M     # a run beside a published model
$ python probe.py out/demo --prompts mine.txt                       # prompts without answers: how each model goes on

The paper shows what its models write after prompts for facts, reasoning and context tracking; here answers are
counted. A model is right where the right answer has a higher log-likelihood per byte than every wrong one: per byte,
because an answer may be one token here and three there, and models of different vocabularies are to be compared. The
answers come in groups in which each is right equally often: who has favourites, but does not read, scores chance.
"""

import argparse
import csv
import html
import io
import itertools
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from checkpoints.checkpoint import directory_of, newest_run
from common.files import write_bytes
from common.statistics import wilson
from generation.backends import LocalBackend, Sampling, load_backend
from generation.prompts import read_prompts

SETS = [Path(__file__).parent / "prompts" / f"{name}.jsonl" for name in ("facts", "reasoning", "context")]
NEARLY = 0.1  # nats per byte; by so much the best wrong answer may lead where a model is nearly right
EXAMPLE = '{"prompt": "The sky is", "right": " blue", "wrong": [" green"]}'


# ---- What is asked ----


@dataclass(frozen=True)
class Probe:
    set: str
    prompt: str
    answers: tuple[str, ...] = ()  # the right one, then the wrong ones; none: the prompt is only continued


def read_probes(path: Path, name: str) -> list[Probe]:
    """The set `name`: prompts with answers, as in prompts/facts.jsonl, or plain ones, as sample.py reads them.

    ValueError names the line that is wrong.
    """
    data = path.read_bytes()
    if path.suffix != ".jsonl" or b'"right"' not in data:
        return [Probe(name, prompt.text) for prompt in read_prompts(path)]
    lines = enumerate(data.split(b"\n"), 1)
    return [Probe(name, *read_answers(line, f"{path}, line {i}")) for i, line in lines if line.strip()]


def read_answers(line: bytes, where: str) -> tuple[str, tuple[str, ...]]:
    """A prompt and its answers, the right one first."""
    try:
        row = json.loads(line)
        prompt, answers = row["prompt"], (row["right"], *row["wrong"])
        "".join((prompt, *answers)).encode()  # all of it text, and no half of a surrogate pair
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{where}: must be an object such as {EXAMPLE}") from None
    # GPT-2's BPE splits a text before every blank that a word follows, and merges only within the parts: so a prompt
    # and its answer have the same ids together as apart, however the vocabulary is cut.
    if not prompt or prompt != prompt.rstrip():
        raise ValueError(f"{where}: the prompt must be a text that does not end with a blank")
    if not all(re.fullmatch(r" \S(.*\S)?", answer) for answer in answers):
        raise ValueError(f"{where}: every answer must begin with one blank, and not end with one")
    if len(answers) < 2 or len(set(answers)) < len(answers):
        raise ValueError(f"{where}: there must be a wrong answer, and no answer twice")
    return prompt, answers


# ---- What a model makes of it ----


@dataclass(frozen=True)
class Result:
    scores: tuple[float, ...]  # nats per byte of every answer, in their order
    greedy: str  # how the model itself goes on

    @property
    def lead(self) -> float:
        """Of the right answer over the best wrong one, in nats per byte."""
        return self.scores[0] - max(self.scores[1:])

    @property
    def verdict(self) -> str:
        if not self.scores:
            return ""
        return "right" if self.lead > 0 else "nearly" if self.lead >= -NEARLY else "wrong"


def examine(backend, probes: Sequence[Probe], sampling: Sampling, bar: tqdm) -> list[Result]:
    """ValueError says why this model cannot take these prompts."""
    pairs = [(probe.prompt, answer) for probe in probes for answer in probe.answers]
    if pairs and not isinstance(backend, LocalBackend):
        raise ValueError("an endpoint gives no log-likelihoods of answers; give it plain prompts, with --prompts")
    for text in [prompt + answer for prompt, answer in pairs] + [probe.prompt for probe in probes]:
        if not backend.fits(text):
            raise ValueError(f'the context, {backend.model.config.block_size} tokens, is too short for "{text[:40]}…"')
    scores = iter(nats_per_byte(backend, pairs, bar) if pairs else [])
    greedy = [""] * len(probes)
    prompts, keys = [probe.prompt for probe in probes], [(i, 0) for i in range(len(probes))]
    for i, text, _ in backend.complete(prompts, keys, sampling):
        greedy[i] = text
        bar.update()
    return [Result(tuple(itertools.islice(scores, len(probe.answers))), text) for probe, text in zip(probes, greedy)]


@torch.inference_mode()
def nats_per_byte(backend: LocalBackend, pairs: Sequence[tuple[str, str]], bar: tqdm) -> list[float]:
    """The log-likelihood of each answer after its prompt, divided by the answer's length in UTF-8."""
    model, device = backend.model, backend.model.wte.weight.device
    ids = [(backend.encode(prompt), backend.tokenizer.encode(answer)) for prompt, answer in pairs]
    lengths = [(len(prompt), len(prompt) + len(answer)) for prompt, answer in ids]
    scores = [0.0] * len(pairs)
    by_length = sorted(range(len(pairs)), key=lambda i: lengths[i][1])
    for start in range(0, len(pairs), backend.batch_size):
        batch = by_length[start : start + backend.batch_size]
        # The shorter ones are filled up behind their end, where none of their own tokens looks.
        tokens = pad_sequence([torch.tensor(sum(ids[i], [])) for i in batch], batch_first=True).to(device)  # (B, T)
        x = model.hidden(tokens, torch.arange(tokens.size(1), device=device), model.attend)  # (B, T, C)
        for row, i in enumerate(batch):
            first, end = lengths[i]
            logits = model.head(x[row, first - 1 : end - 1]).float()  # (tokens of the answer, V)
            nats = F.cross_entropy(logits, tokens[row, first:end], reduction="sum").item()
            scores[i] = -nats / len(pairs[i][1].encode())
        bar.update(len(batch))
    return scores


# ---- How many, and how sure that is ----

Results = dict[str, list[Result]]  # of each model, in the order of the probes


def summary(probes: Sequence[Probe], results: Results) -> list[list[str]]:
    """Rows of a table, models x sets, of the sets that have answers; the last says what a guess would score."""
    table = [["", *results, "chance"]]
    for name in dict.fromkeys(probe.set for probe in probes if probe.answers):
        own = [i for i, probe in enumerate(probes) if probe.set == name]
        column = [f"{name} (n = {len(own)})"]
        for of_model in results.values():
            right = sum(of_model[i].verdict == "right" for i in own)
            low, high = wilson(right / len(own), len(own))
            column.append(f"{right / len(own):.1%} [{low:.1%}, {high:.1%}]")
        column.append(f"{sum(1 / len(probes[i].answers) for i in own) / len(own):.1%}")
        table.append(column)
    return [list(row) for row in zip(*table)] if len(table) > 1 else []


# ---- The tables ----


def as_csv(probes: Sequence[Probe], results: Results) -> str:
    """Prompts x models: of each model its verdict, the lead of the right answer in nats per byte, and its own text."""
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    of_models = [f"{model} {what}" for model in results for what in ("verdict", "lead", "greedy")]
    table.writerow(["set", "prompt", "right", "wrong", *of_models])
    for probe, *row in zip(probes, *results.values()):
        cells = [probe.set, probe.prompt, "".join(probe.answers[:1]), " |".join(probe.answers[1:])]
        for result in row:
            cells += [result.verdict, f"{result.lead:.4f}" if result.scores else "", result.greedy]
        table.writerow(cells)
    return file.getvalue()


STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1d1d1f; --pale: #5c5c64; --line: #d9d9de;
  --right: #d3f0d6; --nearly: #fbeeb4; --wrong: #f9d6d4; }
@media (prefers-color-scheme: dark) { :root { --page: #161618; --text: #e9e9ec; --pale: #b0b0b8; --line: #3a3a40;
  --right: #1c4425; --nearly: #4f4413; --wrong: #56211f; } }
body { margin: 2rem; background: var(--page); color: var(--text); font: 15px/1.4 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } p { max-width: 48rem; }
table { border-spacing: 0; } small, th { color: var(--pale); } td small { display: block; }
th, td { padding: .4rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { position: sticky; top: 0; z-index: 1; } td:first-child { position: sticky; left: 0; min-width: 13rem; }
th, td:first-child { background: var(--page); } td { min-width: 9rem; max-width: 28rem; }
.right { background: var(--right); } .nearly { background: var(--nearly); } .wrong { background: var(--wrong); }
.right::before { content: "✓ "; } .nearly::before { content: "≈ "; } .wrong::before { content: "✗ "; }
"""
LEGEND = f"""<p>A model is <span class="right">right</span> where the log-likelihood of the right answer, divided by its
length in bytes, is above that of every wrong one, <span class="nearly">nearly right</span> where the best wrong answer
leads by up to {NEARLY} nats per byte, <span class="wrong">wrong</span> where it leads by more. The small figure is the
lead of the right answer, in nats per byte. The text is how the model itself goes on (greedy), which is not counted. In
the first table: the share of right ones, its 95 % interval (Wilson; as if no prompt resembled another), and what a
guess would score.</p>"""


def as_html(probes: Sequence[Probe], results: Results) -> str:
    """The same as a page that needs nothing else."""
    parts = ['<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>probe</title>']
    parts += [f"<style>{STYLE}</style>", "<h1>What the models make of the prompts</h1>"]
    if table := summary(probes, results):
        parts += [LEGEND, html_table(table[0], [map(cell, row) for row in table[1:]])]
    for name, rows in itertools.groupby(zip(probes, *results.values()), key=lambda row: row[0].set):
        cells = [[asked(probe), *map(answered, row)] for probe, *row in rows]
        parts += [f"<h2>{html.escape(name)}</h2>", html_table(["", *results], cells)]
    return "\n".join(parts) + "\n</html>\n"


def asked(probe: Probe) -> str:
    right, *wrong = [html.escape(answer.strip()) for answer in probe.answers] or [""]
    return cell(probe.prompt) + (f" <b>{right}</b><small>not {', '.join(wrong)}</small>" if wrong else "")


def answered(result: Result) -> str:
    return cell(result.greedy, result.verdict) + (f"<small>{result.lead:+.2f}</small>" if result.scores else "")


def cell(text: str, kind: str = "") -> str:
    return f'<td class="{kind}">{html.escape(text)}'


def html_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["".join(f"<th>{html.escape(text)}" for text in head), *map("".join, rows)]
    return "<table>\n" + "\n".join(f"<tr>{line}" for line in lines) + "\n</table>"


# ---- The command line ----


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="directories; every run below them is probed")
    parser.add_argument(
        "--model", action="append", default=[], help="as sample.py takes it; may be repeated (default: newest in out/)"
    )
    parser.add_argument(
        "--prompts", nargs="+", type=Path, metavar="FILE", help="instead of our three sets: plain prompts, as sample.py"
        " takes them, which are only continued, or your own with answers, as in prompts/facts.jsonl"
    )  # fmt: skip
    parser.add_argument("--max_new_tokens", type=int, default=16, help="length of the greedy completions")
    parser.add_argument("--out", type=Path, help="directory to write to (default: the first one given)")
    args = parser.parse_args()
    if args.max_new_tokens < 1:
        parser.error(f"--max_new_tokens must be at least 1, not {args.max_new_tokens}")
    return args


def models_named(args: argparse.Namespace) -> list[str]:
    names = []
    for directory in args.runs:
        runs = sorted(str(path.parent) for path in directory.rglob("ckpt.pt"))
        if not runs:
            raise ValueError(f"{directory}: no run below it; train one with `python train.py`, or name a --model")
        names += runs
    return list(dict.fromkeys(names + args.model)) or [str(newest_run())]


def probe_all(args: argparse.Namespace) -> int:
    """Returns the exit status: 1 if a model had to be left out."""
    files = {str(path): path for path in args.prompts} if args.prompts else {path.stem: path for path in SETS}
    probes = [probe for name, path in files.items() for probe in read_probes(path, name)]
    names, results = models_named(args), {}
    sampling = Sampling(temperature=0, max_new_tokens=args.max_new_tokens)
    n_texts = len(names) * sum(1 + len(probe.answers) for probe in probes)
    with tqdm(desc="probing", total=n_texts, unit="text", disable=None, delay=1) as bar:
        for name in names:
            try:
                results[name] = examine(load_backend(name), probes, sampling, bar)
            except ValueError as error:
                if len(names) == 1:
                    raise
                bar.write(f"probe.py: {name} is left out: {error}", file=sys.stderr)
    if not results:
        raise ValueError("no model is left; nothing was written")
    directory = args.out or (args.runs[0] if args.runs else directory_of(names[0]))
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / ("probe-prompts.csv" if args.prompts else "probe.csv")
    page = path.with_suffix(".html")
    write_bytes(path, as_csv(probes, results).encode())
    write_bytes(page, as_html(probes, results).encode())
    for row in summary(probes, results):
        print(f"{row[0]:{max(map(len, names))}}", *(f"{text:>22}" for text in row[1:]), sep="  ")
    print(f"{path} has prompts x models; open {page} to see what each of them says")
    return int(len(results) < len(names))


def main():
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")
    try:
        sys.exit(probe_all(args))
    except KeyboardInterrupt:
        sys.exit("\nprobe.py: stopped; nothing was written")
    except (OSError, ValueError) as error:
        sys.exit(f"probe.py: {error}")


if __name__ == "__main__":
    main()
