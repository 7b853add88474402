"""
Is a model's writing novel and diverse, or memorized? Compares a run's completions by ROUGE-k with their true endings,
with each other, and with every training story. As a baseline, held-out stories go through the same comparisons.

$ python rouge.py out/cpu_8m                    # its samples.jsonl -> rouge.json, rouge.png, flagged.txt
$ python sample.py --eval 50 --split train      # then rerun rouge.py to see both splits side by side
$ python rouge.py out/cpu_8m out/overfit        # several runs: also overlays their histograms in out/rouge.png
$ python rouge.py out/hot                       # sampled only at several temperatures: each one counts as a run
$ python rouge.py out/api--gpt-3.5-turbo --data data/tinystories --k 4 --counting clipped

The metric itself, for any two texts:

>>> from novelty.rouge_scores import rouge_k
>>> rouge_k("The cat sat on the mat.", "A cat sat there.", k=2)
Score(precision=0.2, recall=0.3333333333333333, f=0.25)
"""

import argparse
import sys
from pathlib import Path

from checkpoints.checkpoint import newest_run
from common.cli import Parser, one_line_errors
from common.files import write_bytes, write_json
from generation.samples_file import SAMPLES, run_of, temperatures_of
from novelty.ngram_search import COUNTINGS
from novelty.rouge_analysis import Settings, analyze
from novelty.rouge_tables_and_plots import plot, scores_table, splits_table


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="directories with a samples.jsonl (default: the newest run)")
    parser.add_shared("data", "markdown")
    parser.add_argument("--k", type=int, default=2, help="length of the k-grams (default: 2)")
    parser.add_argument("--counting", choices=COUNTINGS, default="set", help="set (the paper) or clipped (rouge-score)")
    parser.add_argument("--tokens", action="store_true", help="compare tokens instead of words; finds no templates")
    parser.add_argument("--threshold", type=float, default=0.75, help="flag at this share of k-grams in one story")
    args = parser.parse_args()
    parser.require(args, "k", args.k >= 1, "at least 1")
    parser.require(args, "threshold", 0 < args.threshold <= 1, "above 0 and at most 1")
    return args


def with_samples(run: Path) -> list[Path]:
    """The run itself or, if it was only sampled at several temperatures, the directory of each temperature."""
    has_own = any((run / name).exists() for name in SAMPLES.values())
    return [run] if has_own else temperatures_of(run) or [run]


def main() -> None:
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")
    with one_line_errors("rouge.py", interrupted="the old files are unchanged"):
        settings = Settings(args.k, args.counting, args.tokens, args.threshold)
        runs = [directory for run in args.runs or [newest_run()] for directory in with_samples(run)]
        analyzed, written, to_read = [], [], []
        for run in runs:
            analyses = analyze(run, args.data, settings)
            for each in analyses:
                ending = "-train" * (each.rouge_json["split"] == "train")
                print(scores_table(each.rouge_json, args.markdown))
                write_json(run / f"rouge{ending}.json", each.rouge_json)
                write_bytes(run / f"flagged{ending}.txt", each.flagged_txt.encode())
                written.append(f"rouge{ending}.json")
                n = sum(count["completions"] for count in each.rouge_json["flagged"].values())
                to_read.append(f"{run}/flagged{ending}.txt ({n} flagged)")
            if len(analyses) == 2:
                print(splits_table(each.rouge_json, args.markdown))
            picture = run / "rouge.png"
            plot(picture, [each.rouge_json for each in analyses])
            analyzed += [each.rouge_json for each in analyses]
        if len(runs) > 1:
            picture = run_of(run).parent / "rouge.png"
            plot(picture, analyzed)
        names = ", ".join(dict.fromkeys(written))
        print(f"wrote {names} and rouge.png; next: look at {picture}, read {', '.join(to_read)}")


if __name__ == "__main__":
    main()
