"""
Flags and one-line error messages, shared by all commands.

>>> parser = Parser(__doc__)
>>> parser.add_shared("model", "data", "seed")
>>> with one_line_errors("sample.py", interrupted="finished stories are kept"):
...     write(parser.parse_args())
"""

import argparse
import contextlib
import difflib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn


def number(kind: type, allowed: Callable[[float], bool], meaning: str) -> Callable[[str], float]:
    """A type for add_argument: int or float, within limits."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not allowed(value):
            raise argparse.ArgumentTypeError(f"must be {meaning}, not {text}")
        return value

    return parse


positive = number(int, lambda x: x >= 1, "a whole number, 1 or more")
non_negative = number(int, lambda x: x >= 0, "a whole number, 0 or more")
positive_float = number(float, lambda x: 0 < x < float("inf"), "a number above 0")
non_negative_float = number(float, lambda x: 0 <= x < float("inf"), "a number, 0 or more")
share = number(float, lambda x: 0 < x < 1, "above 0 and below 1")


def pattern(text: str) -> re.Pattern:
    try:
        return re.compile(text, re.MULTILINE)
    except re.error as error:
        remedy = f"the text as it stands is '{re.escape(text)}'"
        raise argparse.ArgumentTypeError(f"not a regular expression: {error}; {remedy}") from None


def existing_path(text: str) -> Path:
    path = Path(text)
    if path.exists():
        return path
    there = sorted(path.parent.glob("*"))
    similar = difflib.get_close_matches(path.name, [entry.name for entry in there])
    shown = [path.with_name(name) for name in similar] or filter(Path.is_dir, there)
    others = ", ".join(map(str, shown)) or "nothing"
    raise argparse.ArgumentTypeError(f"{text}: no such file or directory; there are: {others}")


def existing_file(text: str) -> Path:
    path = existing_path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: a directory; name the files in it")
    return path


def existing_model(text: str) -> str:
    if text.startswith(("hf:", "api:")):
        return text
    return str(existing_path(text))


def api_address(text: str) -> str:
    # The message does not show the text, which may contain a password.
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError("must begin with http:// or https://")
    if "?" in text:
        raise argparse.ArgumentTypeError("takes no ? and what follows it")
    if "@" in text:
        remedy = "name:password@ goes to OPENAI_BASE_URL, as everybody can see flags"
        raise argparse.ArgumentTypeError(f"no @ in it; {remedy}")
    return text


def json_object(text: str) -> dict:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from None
    if not isinstance(value, dict) or value.keys() & {"model", "messages", "n", "stream"}:
        raise argparse.ArgumentTypeError("must be {…}, without model, messages, n and stream")
    return value


# ---- Flags ----
SHARED = {  # the same name, default and help text in every command
    "model": dict(
        help=(
            "a run (or checkpoint), hf:ID-or-directory, or api:MODEL (default: the newest run in"
            " out/)"
        )
    ),
    "checkpoint": dict(
        default="best", help="weights of a run: best (lowest validation loss), last, or a kept step"
    ),
    "data": dict(
        type=Path,
        help="a corpus made by prepare.py, such as data/tinystories (default: the run's own)",
    ),
    "out": dict(type=Path, help="where to write (default: the run's directory)"),
    "seed": dict(type=non_negative, default=0, help="seed for everything that is drawn at random"),
    "set": dict(
        default="eval",
        metavar="NAME",
        help="which stories of the runs: eval (default), train, unseen, prompt, or the name of a"
        " file of prompts, as in samples/NAME.jsonl",
    ),
}
API = {  # the settings of generation.api_client.ApiClient
    "base_url": dict(
        type=api_address,
        help="URL of an OpenAI-compatible API (default: OPENAI_BASE_URL, or OpenAI's; for judges,"
        " JUDGE_BASE_URL before these)",
    ),
    "concurrency": dict(type=positive, help="requests in flight at once (default: 8)"),
    "timeout": dict(type=positive_float, help="seconds to wait for a reply (default: 120)"),
    "price_in": dict(type=non_negative_float, help="dollars per million input tokens"),
    "price_out": dict(type=non_negative_float, help="dollars per million output tokens"),
    "max_cost": dict(
        type=positive_float,
        help="budget in dollars; the command stops before exceeding it (sample.py: needs"
        " --max_new_tokens)",
    ),
    "spending": dict(
        type=Path,
        metavar="FILE",
        help="keep what was spent in this file: commands that share it share the budget",
    ),
    "extra": dict(
        type=json_object,
        metavar="JSON",
        help='fields to add to each request, such as {"top_p": 0.9}; null removes one',
    ),
}


class Parser(argparse.ArgumentParser):
    def __init__(self, description: str):
        super().__init__(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )

    def parse_args(self, args=None) -> argparse.Namespace:
        """Names an unknown flag, where argparse would complain of its value first."""
        known = list(self._option_string_actions)
        args = sys.argv[1:] if args is None else args
        for arg in args:
            flag = re.match(r"--[\w-]+(?=$|=)", arg)
            if flag and not any(name.startswith(flag[0]) for name in known):
                similar = difflib.get_close_matches(flag[0], known, n=1)
                remedy = f"; did you mean {similar[0]}?" if similar else ""
                self.error(f"no flag {flag[0]}{remedy}")
        return super().parse_args(args)

    def error(self, message: str) -> NoReturn:
        """One line, where argparse would print the usage first."""
        self.exit(2, f"{self.prog}: {message} (--help explains the flags)\n")

    def add_shared(self, *names: str, **changes) -> None:
        """Adds these flags of SHARED; changes: overrides by this command, such as default=3."""
        for name in names:
            self.add_argument(f"--{name}", **SHARED[name] | changes)

    def add_api(self, title: str) -> None:
        group = self.add_argument_group(title)
        for name, settings in API.items():
            group.add_argument(f"--{name}", **settings)

    def require_api(self, args: argparse.Namespace) -> dict:
        """Checks that prices and budget go together; returns the API flags that are given, as
        settings of ApiClient."""
        if (args.price_in is None) != (args.price_out is None):
            self.error("--price_in and --price_out belong together")
        for name in ("max_cost", "spending"):
            if getattr(args, name) is not None and args.price_in is None:
                self.error(
                    f"--{name} needs --price_in and --price_out, in dollars per million tokens"
                )
        settings = {name: getattr(args, name) for name in API}
        return {name: value for name, value in settings.items() if value is not None}


# ---- Errors ----
class UserError(ValueError):
    """Something that the user can mend. The message says what is wrong, where, and what to do."""


@contextlib.contextmanager
def one_line_errors(
    program: str, interrupted: str, remedy: str = "free some space or fix that, then run it again"
):
    """Exits with a one-line message for bad input (UserError), a full disk (OSError), Ctrl-C.

    interrupted: the state after Ctrl-C; remedy: advice for when a file cannot be read or written.
    """
    sys.stdout.reconfigure(errors="replace")  # some terminals cannot show every character
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(f"\n{program}: stopped; {interrupted}")
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()  # Python would complain that it could not flush
        sys.exit(1)
    except (UserError, OSError) as error:
        problem = str(error)
        if isinstance(error, OSError):
            place = f"{error.filename}: " if error.filename else ""
            problem = f"{place}{error.strerror or error}; {remedy}"
        # The name of a file in it may contain a line break.
        sys.exit(f"{program}: {problem}".replace("\n", "\\n"))
