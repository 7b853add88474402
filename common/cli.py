"""
What all commands share: flags, and one-line error messages.

>>> parser = Parser(__doc__)
>>> parser.add_shared("model", "data", "seed")
>>> with one_line_errors("sample.py", interrupted="what was written is kept; the same command continues"):
...     write(parser.parse_args())
"""

import argparse
import contextlib
import sys
from pathlib import Path


def which_checkpoint(text: str) -> str:
    if text in ("best", "last", "all") or text.isdecimal():
        return text
    raise argparse.ArgumentTypeError(f"must be best, last, all or a step number, not {text}")


SHARED = {  # the same name, default and help text in every command
    "model": dict(help="a run (or checkpoint), hf:ID-or-directory, or api:MODEL (default: the newest run in out/)"),
    "checkpoint": dict(
        type=which_checkpoint,
        metavar="best|last|STEP",
        default="best",
        help="of a run: the one with the lowest validation loss, the last, or one that --keep_checkpoints kept",
    ),
    "data": dict(type=Path, help="a corpus made by prepare.py, such as data/tinystories (default: the run's own)"),
    "out": dict(type=Path, help="where to write (default: the run's directory)"),
    "seed": dict(type=int, default=0, help="seed for everything that is drawn at random"),
    "n": dict(type=int, help="completions per prompt"),
    "markdown": dict(action="store_true", help="print tables as Markdown"),
    "base_url": dict(help="URL of an OpenAI-compatible API (default: OPENAI_BASE_URL, or OpenAI's own)"),
    "concurrency": dict(type=int, default=8, help="requests in flight at once"),
    "rate": dict(type=float, help="requests per minute, at most"),
    "timeout": dict(type=float, default=120, help="seconds to wait for a reply"),
    "price_in": dict(type=float, help="dollars per million input tokens"),
    "price_out": dict(type=float, help="dollars per million output tokens"),
    "max_cost": dict(type=float, help="budget in dollars; the command stops before exceeding it"),
}
API = ("base_url", "concurrency", "rate", "timeout", "price_in", "price_out", "max_cost")  # settings of ApiClient, too


class Parser(argparse.ArgumentParser):
    """Flags are spelled with underscores; --max-tokens is understood as --max_tokens."""

    def __init__(self, description: str):
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def add_shared(self, *names: str, **changes) -> None:
        """Adds these flags of SHARED; changes: what this command overrides, such as default=3."""
        for name in names:
            self.add_argument(f"--{name}", **SHARED[name] | changes)

    def add_api(self, title: str) -> None:
        group = self.add_argument_group(title)
        for name in API:
            group.add_argument(f"--{name}", **SHARED[name])

    def require_api(self, args: argparse.Namespace) -> dict:
        """Checks the API flags; returns them as settings of generation.api_client.ApiClient."""
        if not (args.base_url or "http://").startswith(("http://", "https://")):
            self.error("--base_url must begin with http:// or https://")  # not shown: it may contain a password
        self.require(args, "concurrency", args.concurrency >= 1, "at least 1")
        for name in ("rate", "timeout", "max_cost"):
            self.require(args, name, getattr(args, name) is None or getattr(args, name) > 0, "above 0")
        for name in ("price_in", "price_out"):
            self.require(args, name, getattr(args, name) is None or getattr(args, name) >= 0, "0 or more")
        if (args.price_in is None) != (args.price_out is None):
            self.error("--price_in and --price_out belong together")
        if args.max_cost is not None and args.price_in is None:
            self.error("--max_cost needs --price_in and --price_out, in dollars per million tokens")
        return {name: getattr(args, name) for name in API}

    def parse_known_args(self, args=None, namespace=None):
        args = sys.argv[1:] if args is None else args
        return super().parse_known_args([underscored(arg) for arg in args], namespace)

    def require(self, args: argparse.Namespace, name: str, ok: bool, what: str) -> None:
        """Exits with a one-line message if the value of a flag is not ok."""
        if not ok:
            self.error(f"--{name} must be {what}, not {getattr(args, name)}")


def underscored(arg: str) -> str:
    name, equals, value = arg.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value if arg.startswith("--") else arg


@contextlib.contextmanager
def one_line_errors(program: str, interrupted: str, remedy: str = "free some space or fix that, then run it again"):
    """Exits with a one-line message for what a user can fix or caused: bad input, a full disk, Ctrl-C.

    interrupted: what remains after Ctrl-C; remedy: what to do when a file cannot be read or written.
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
    """Escapes line breaks, which a file's name may contain."""
    return message.replace("\r", "\\r").replace("\n", "\\n")
