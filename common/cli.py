"""
What all commands have in common: flags, and one line when something is wrong.

>>> parser = Parser(__doc__)
>>> parser.add_shared("model", "data", "seed")
>>> with one_line_errors("sample.py", interrupted="what was written is kept; the same command goes on"):
...     write(parser.parse_args())
"""

import argparse
import contextlib
import sys
from pathlib import Path

SHARED = {  # the same name, default and help text in every command
    "model": dict(help="a run (or checkpoint), hf:ID-or-directory, or api:MODEL (default: the newest run in out/)"),
    "data": dict(type=Path, help="a corpus made by prepare.py, such as data/tinystories (default: the run's own)"),
    "out": dict(type=Path, help="where to write (default: the run's directory)"),
    "seed": dict(type=int, default=0, help="of everything that is drawn at random"),
    "n": dict(type=int, help="completions of each prompt"),
    "markdown": dict(action="store_true", help="print tables as Markdown"),
}


class Parser(argparse.ArgumentParser):
    """Flags are spelled with underscores; --max-tokens is understood as --max_tokens."""

    def __init__(self, description: str):
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def add_shared(self, *names: str, **changes) -> None:
        """Adds these flags of SHARED; changes: what is different about them in this command, such as default=3."""
        for name in names:
            self.add_argument(f"--{name}", **SHARED[name] | changes)

    def parse_known_args(self, args=None, namespace=None):
        args = sys.argv[1:] if args is None else args
        return super().parse_known_args([underscored(arg) for arg in args], namespace)

    def require(self, args: argparse.Namespace, name: str, ok: bool, what: str) -> None:
        """Ends with one line if the value of a flag is not what it must be."""
        if not ok:
            self.error(f"--{name} must be {what}, not {getattr(args, name)}")


def underscored(arg: str) -> str:
    name, equals, value = arg.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value if arg.startswith("--") else arg


@contextlib.contextmanager
def one_line_errors(program: str, interrupted: str, remedy: str = "free some space or fix that, then run it again"):
    """Ends the program with one line for what a user can mend: bad input, a full disk, Ctrl-C.

    interrupted: what is left after Ctrl-C; remedy: what to do when a file cannot be read or written.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(f"\n{program}: stopped; {interrupted}")
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()  # Python would complain that it could not flush
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(one_line(f"{program}: {where}{error.strerror or error}; {remedy}"))
    except ValueError as error:
        sys.exit(one_line(f"{program}: {error}"))


def one_line(message: str) -> str:
    """Also where a file's name has a line break in it."""
    return message.replace("\r", "\\r").replace("\n", "\\n")
