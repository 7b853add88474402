"""
Atomic writes: a file gets its name once all of it is on disk, so it is either complete or absent.

>>> write_json(Path("out/demo/config.json"), {"n_layer": 4})
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from nanostories.cli import UserError

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None

ROOT = Path(__file__).resolve().parents[1]  # of the repository
PROMPTS = ROOT / "prompts"


def read_json(path: Path) -> dict:
    """The object in a JSON file. UserError: it is not there, or not readable."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(facts, dict):
        raise UserError(f"{path}: must contain a JSON object {{…}}")
    return facts


@contextlib.contextmanager
def write_atomically(path: Path):
    """Yields a temporary path to write to, in a directory that is made if it is missing. It is
    renamed to `path` once on disk, or removed if anything fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    with write_atomically(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, facts: dict) -> None:
    write_bytes(path, (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode())


def read_json_lines(path: Path) -> Iterator[dict]:
    """The objects of a file that append_json wrote; a line that was cut by a kill is left out."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def append_json(path: Path, row: dict) -> None:
    """Adds a line, which a process that is killed later does not lose."""
    line = json.dumps(row, ensure_ascii=False).encode(errors="replace") + b"\n"
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            last_byte = file.read(1)
            if last_byte != b"\n":  # the line above was cut by a kill
                line = b"\n" + line
        file.write(line)


def set_aside(path: Path) -> Path:
    """Renames a file or directory to the first free name among name-1, name-2, …, and returns the
    new path."""
    i = 1
    while path.with_name(f"{path.name}-{i}").exists():
        i += 1
    return path.rename(path.with_name(f"{path.name}-{i}"))


@contextlib.contextmanager
def lock(directory: Path, name: str = ".lock", busy: str = "in use by another process"):
    """Locks the file `name` in the directory, which is created, while the block runs; UserError if
    it is locked."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / name).open("a") as file:
        try:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{directory}: {busy}") from None
        except OSError:  # a file system without locks
            pass
        yield


def common_directory(paths: Sequence[Path]) -> Path:
    """The one that holds all of them; UserError if it is the root."""
    common = Path(os.path.commonpath([path.resolve() for path in paths]))
    if common == Path(common.anchor):
        places = " and ".join(map(str, paths))
        raise UserError(f"{places} have only the root in common; name those of one directory")
    return common


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_directory() -> Path:
    """For files that can be made again, such as compiled kernels."""
    parent = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(parent, "nanostories")
