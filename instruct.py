"""
Do models follow instructions? Checks each story for what its header asked for, without a judge.

$ python sample.py --model out/a --eval 200 --n 1                              # the headers of validation stories
$ python sample.py --model out/a --eval 200 --n 1 --ask words summary words,summary        # or parts of them
$ python instruct.py out/a out/b                # a table; instruct.csv and instruct.png next to the runs

Each figure comes with two baselines: the true stories, the best that can be expected, and the model's stories for other
prompts, which did not see this instruction. Twist, MoralValue, Foreshadowing and Conflict cannot be checked by rules:
for these, grade.py asks a judge.
"""

from dataclasses import asdict
from pathlib import Path

from checkpoints.checkpoint import newest_run
from common.cli import Parser, one_line_errors
from common.tables import write_table
from grading.instruction_following import measure_run, measurements_text, plot, read_instructed


def main() -> None:
    parser = Parser(__doc__)
    runs = "runs, or files that sample.py wrote (default: the newest run in out/)"
    parser.add_argument("runs", nargs="*", type=Path, help=runs)
    parser.add_shared("markdown")
    args = parser.parse_args()
    with one_line_errors("instruct.py", interrupted="nothing was written"):
        paths = args.runs or [newest_run()]
        lines = [line for path in paths for line in measure_run(*read_instructed(path))]
        print(measurements_text(lines, args.markdown))
        directory = paths[0].parent
        write_table(directory / "instruct.csv", list(map(asdict, lines)))
        plot(directory / "instruct.png", lines)
    print(f"wrote {directory / 'instruct.csv'} and instruct.png; next, for a judge's view: python grade.py {directory}")


if __name__ == "__main__":
    main()
