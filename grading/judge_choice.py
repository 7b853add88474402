"""
What grade.py does if no judge is named: it writes missing samples, and chooses which run judges which.

>>> trained = trained_runs([Path("out")])
>>> write_missing_samples(trained)
>>> graded = choose_judges(trained, runs)
>>> [run.name for run in graded["lm:out/best"]], [run.name for run in graded["lm:out/second"]]
(['second', 'third'], ['best', 'third'])
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from common.files import read_json
from generation.samples_file import SAMPLES, run_of, temperatures_of
from grading.ledger import Run
from grading.metrics import corpus_of_run, held_out
from grading.rubrics import PREFIX

N_PROMPTS, CUT = 50, 0.5  # the same as sample.py --eval 50


def trained_runs(directories: Iterable[Path]) -> list[Path]:
    """The runs of train.py below the directories: those with a log and weights. Checkpoints in a run are not runs."""
    logs = {path.resolve(): path for directory in directories for path in directory.rglob("log.csv")}
    runs = {path.parent for path in logs.values() if list(path.parent.glob("*.pt"))}
    return sorted(run for run in runs if run.parent not in runs)


def write_missing_samples(runs: Iterable[Path], data: Path | None = None, dry_run: bool = False) -> None:
    """Writes samples for each run that has none, as `python sample.py --model RUN --eval 50 --n 1` would.

    A small validation split gives fewer; runs whose corpus is missing are skipped. data: a corpus to use instead.
    """
    from checkpoints.checkpoint import corpus_of
    from generation.backends import Sampling, load_backend
    from generation.prompts import evaluation_prompts
    from generation.samples_file import write_samples

    for run in (run for run in runs if not (run / SAMPLES["val"]).exists() and not temperatures_of(run)):
        corpus = data or corpus_of(str(run))
        if not (corpus / "meta.json").exists():
            print(f"{run}: left out, as it has no samples and its corpus {corpus} is missing; name one with --data")
            continue
        n = min(N_PROMPTS, read_json(corpus / "meta.json")["splits"]["val"]["stories"] - 1)
        print(f"{run}: no samples yet; it gets those of `python sample.py --model {run} --eval {n} --n 1`")
        if dry_run:
            continue
        backend = load_backend(str(run))
        prompts = dict(enumerate(evaluation_prompts(corpus, n, CUT)))
        prompts = {i: prompt for i, prompt in prompts.items() if backend.fits(prompt.text)}
        cut = None if any(prompt.instruction for prompt in prompts.values()) else CUT
        write_samples(run / SAMPLES["val"], backend, dict(model=str(run), cut=cut, split="val"), prompts, 1, Sampling())


def choose_judges(trained: Sequence[Path], runs: Sequence[Run]) -> dict[str, list[Run]]:
    """{judge: the runs that it grades}; prints who judges whom. Of a corpus's runs, the one with the lowest bits per
    byte grades all but itself, and so does the second best; a single run grades itself.

    Bits per byte can only be compared on one corpus, so each corpus has its own judges. Samples of models that were not
    trained here are graded by the judges of every corpus.
    """
    chosen, by_corpus = {}, rank_by_corpus(trained)
    for corpus, ranked in by_corpus.items():
        graded = [run for run in runs if corpus_of_run(run.directory) in (corpus, None)]
        for judge in list(ranked)[:2]:
            others = [run for run in graded if run_of(run.directory) != judge.resolve()]
            chosen[f"{PREFIX}{judge}"] = others if len(ranked) > 1 else graded
        print(who_judges(corpus, ranked))
    if not by_corpus:
        print("no run of train.py here that could judge by likelihood; name one: --judge lm:RUN")
    return chosen


def rank_by_corpus(trained: Iterable[Path]) -> dict[Path | None, Mapping[Path, float]]:
    """{corpus: {run: its bits per byte}}, the lowest first."""
    by_corpus = {}
    for run in trained:
        _, bpb = held_out(run)
        if not math.isnan(bpb):
            by_corpus.setdefault(corpus_of_run(run), []).append((bpb, run))
    return {corpus: {run: bpb for bpb, run in sorted(ranked)} for corpus, ranked in by_corpus.items()}


def who_judges(corpus: Path | None, ranked: Mapping[Path, float]) -> str:
    (best, bpb), *others = ranked.items()
    if not others:
        alone = f"{best} is the only run of {corpus} and judges itself: its scores then say how sure it is of its own"
        return f"{alone} words, not how good they are; train another, or name a --judge lm:RUN"
    second, second_bpb = others[0]
    line = f"of the runs of {corpus}, {best} judges all but itself (the lowest bits per byte, {bpb:.3f})"
    return f"{line}, and {second} ({second_bpb:.3f}) all but itself, so that {best} is judged, too"
