"""
Atomic writes: a file gets its name once all of it is on disk, so it is either complete or absent.

>>> write_json(Path("out/demo/config.json"), {"n_layer": 4})
"""

import contextlib
import hashlib
import io
import json
import os
import sys
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None


class Busy(ValueError):
    """Another process holds the lock."""


def read_json(path: Path) -> dict:
    """The object in a JSON file; ValueError names what is wrong with it."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as JSON ({getattr(error, 'strerror', error)})") from None
    if not isinstance(facts, dict):
        raise ValueError(f"{path}: must contain a JSON object {{…}}")
    return facts


@contextlib.contextmanager
def write_atomically(path: Path, previous: Path | None = None):
    """Yields a temporary path to write to. It is renamed to `path` once on disk, or removed if anything fails.

    previous: the name under which to keep the file that was there before.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        if previous and path.exists():
            path.replace(previous)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Leaves either the old file or the complete new one, never half of one."""
    with write_atomically(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, facts: dict) -> None:
    write_bytes(path, (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode())


def is_at(path: Path, file: io.IOBase) -> bool:
    """Whether the open file is still the one at this path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def lock(directory: Path, name: str = ".lock", busy: str = "in use by another process", wait=False, keep=True):
    """Creates the directory and locks the file `name` in it. If another process holds the lock: raises Busy, or waits.

    keep: whether the file stays afterwards, as it must if child processes inherit the lock. Yields the locked file, or
    None where there are no locks. A process that inherits the open file holds the lock as well.
    """
    path, message = directory / name, f"{directory}: {busy}"
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        if fcntl is None:
            yield None
            return
        with path.open("a") as file:  # the system releases the lock however the process ends
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise Busy(message) from None
                print(f"{message}; waiting for it", file=sys.stderr, flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:  # a file system that has no locks
                pass
            if not is_at(path, file):
                continue  # the previous holder deleted the file, so this lock would keep nobody out
            try:
                yield file
            finally:
                if not keep:
                    path.unlink(missing_ok=True)
            return


def sha256_of(path: Path) -> str:
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            sha256.update(block)
    return sha256.hexdigest()


def has_sha256(path: Path, sha256: str) -> bool:
    """Whether the file has this SHA-256. It is hashed once, then again only if its size, times or location change."""
    stat = path.stat()
    stamp = f"{sha256} {stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}".encode()
    note = cache_directory() / "checksums" / hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    with contextlib.suppress(OSError):
        if note.read_bytes() == stamp:
            return True
    if sha256_of(path) != sha256:
        return False
    with contextlib.suppress(OSError):  # without a writable cache it is hashed every time
        note.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(note, stamp)
    return True


def cache_directory() -> Path:
    """Where compiled kernels, measurements, checksums and downloaded models are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "nanostories"
