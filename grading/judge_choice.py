"""
Without --judge, grade.py writes missing samples, and chooses which run judges which.

>>> graded = choose_judges(trained_runs([Path("out")]), runs)
>>> [run.name for run in graded["lm:out/best"]], [run.name for run in graded["lm:out/second"]]
(['second', 'third'], ['best', 'third'])
"""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from common.files import read_json
from generation.samples_file import SAMPLES, temperatures_of
from grading.metrics import held_out
from grading.scores import LIKELIHOOD_PREFIX
from grading.stories import Run, corpus_of

SAMPLE = Path(__file__).parent.parent / "sample.py"
N_PROMPTS = 50


def trained_runs(directories: Iterable[Path]) -> list[Path]:
    """The runs of train.py below the directories: those with a log and weights. Checkpoints in a run are not runs."""
    logs = {path.resolve(): path for directory in directories for path in directory.rglob("log.csv")}
    runs = {path.parent for path in logs.values() if list(path.parent.glob("*.pt"))}
    return sorted(run for run in runs if run.parent not in runs)


def write_missing_samples(runs: Iterable[Path], data: Path | None = None, dry_run: bool = False) -> None:
    """Runs sample.py --eval 50 --n 1, or with as many prompts as the validation split gives, for each run that has no
    samples; runs whose corpus is missing are skipped. data: a corpus to use instead."""
    for run in (run for run in runs if not (run / SAMPLES["val"]).exists() and not temperatures_of(run)):
        corpus = data or corpus_of(run) or run
        if not (corpus / "meta.json").exists():
            print(f"{run}: left out, as it has no samples and its corpus {corpus} is missing; name one with --data")
            continue
        n = min(N_PROMPTS, read_json(corpus / "meta.json")["splits"]["val"]["stories"] - 1)
        command = ["--model", str(run), "--eval", str(n), "--n", "1", *(["--data", str(data)] if data else [])]
        print(f"{run}: no samples yet: python sample.py {' '.join(command)}", flush=True)
        if not dry_run and subprocess.run([sys.executable, SAMPLE, *command]).returncode:
            raise ValueError(f"{run}: sample.py could not write samples; its message is above")


def choose_judges(trained: Sequence[Path], runs: Sequence[Run]) -> dict[str, list[Run]]:
    """{judge: the runs that it grades}. Of each corpus's runs (bits per byte compare on one corpus only), the one with
    the lowest bits per byte grades all but itself, and so does the second best; a single run grades itself. Samples of
    models that were not trained here are graded by the judges of every corpus."""
    chosen, bpb = {}, {run: held_out(run).get("bpb") for run in trained}
    ranked = sorted((run for run in trained if bpb[run] is not None), key=bpb.get)
    for corpus in dict.fromkeys(map(corpus_of, ranked)):
        judges = [run for run in ranked if corpus_of(run) == corpus][:2]
        for judge in judges:
            graded = [run for run in runs if run.corpus in (corpus, None)]
            others = [run for run in graded if run.model != judge.resolve()]
            chosen[f"{LIKELIHOOD_PREFIX}{judge}"] = others if len(judges) > 1 else graded
            print(f"{LIKELIHOOD_PREFIX}{judge} judges: {bpb[judge]:.3f} bits per byte on {corpus}")
        if len(judges) == 1:
            print(f"{judge} judges itself, as the only run of its corpus: how sure it is of its words, not how good")
    if not chosen:
        print("no run of train.py here that could judge by likelihood; name one: --judge lm:RUN")
    return chosen
