"""
Downloads that resume: what has arrived is kept beside the file, and the next attempt, or the next run, continues there.

HF_ENDPOINT names a mirror of the Hugging Face hub; HF_TOKEN is sent only to the hub (or that mirror).

>>> download(f"{endpoint()}/gpt2/resolve/main/config.json", "config.json")
PosixPath('config.json')
"""

import os
import re
import sys
import time
from pathlib import Path

import requests
from tqdm import tqdm

from common.files import lock, sha256_of


class HubError(ValueError):
    """A download that failed. The message is one line for the user: what is wrong, where, what to do."""


class Absent(HubError):
    """The server has no such file."""


class TransientError(Exception):
    """An attempt that did not get the whole file, though the next one may."""


def endpoint() -> str:
    """The address of the hub or its mirror. It may hold no password, since messages and meta.json show it."""
    address = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or "https://huggingface.co"
    if not re.fullmatch(r"https?://[^\s@?#]+", address):
        raise HubError("HF_ENDPOINT must be an address such as https://huggingface.co, without a user name or password")
    return address


def token() -> str:
    """HF_TOKEN, "" if it is not set."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if not re.fullmatch("[!-~]*", token):  # requests would refuse the header, and print it
        raise HubError("HF_TOKEN contains blanks or characters that no token has; copy it again")
    return token


def download(url: str, path: str | Path, tries: int = 6, pause: float = 1.0, timeout: float = 30.0) -> Path:
    """Download `url` to `path`, unless it exists. What has arrived stays in `path`.part, and a later call resumes.

    HubError after `tries` consecutive attempts that got nothing new. Between attempts it waits `pause` seconds, then
    twice as long, and so on; `timeout` (seconds) is how long the server may be silent. A second download of the same
    file waits for the first.
    """
    path = Path(path)
    if path.exists():  # even in a directory where nothing can be locked or written
        return path
    part = path.with_name(path.name + ".part")
    try:
        with lock(path.parent, f".{path.name}.lock", f"{path.name} is being downloaded", wait=True, keep=False):
            retry(url, path, tries, pause, timeout)
    except requests.RequestException as error:  # such as an invalid URL; its text may contain secrets
        raise HubError(f"{url} to {part}: {type(error).__name__}; fix that, then run again") from None
    except OSError as error:
        raise HubError(f"{url} to {part}: {error.strerror or error}; fix that, then run again") from None
    return path


def retry(url: str, path: Path, tries: int, pause: float, timeout: float) -> None:
    """Retries until the file is there. It already is if another process downloaded it while we awaited the lock."""
    part, etag_file = (path.with_name(path.name + ending) for ending in (".part", ".part.etag"))
    failures, most_bytes = 0, 0
    while not path.exists():
        try:
            sha256 = attempt(url, part, etag_file, timeout)
            if sha256 and sha256_of(part) != sha256:
                part.unlink()
                etag_file.unlink()
                raise HubError(f"{url}: the download did not match the server's SHA-256 and was deleted; run again")
            part.rename(path)
            etag_file.unlink(missing_ok=True)
            break
        except TransientError as error:
            reason = str(error)
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
            reason = type(error).__name__  # its text is half a page about pools and sockets
        n_bytes = part.stat().st_size if part.exists() else 0
        failures, most_bytes = 0 if n_bytes > most_bytes else failures + 1, max(n_bytes, most_bytes)
        if failures == tries:
            raise HubError(f"{url}: {tries} consecutive attempts failed ({reason}); run again later to resume")
        tqdm.write(f"{path.name}: {reason} at {n_bytes:,} bytes, retrying", file=sys.stderr)
        time.sleep(pause * 2**failures)


def attempt(url: str, part: Path, etag_file: Path, timeout: float) -> str:
    """Append to `part` the rest of the file, or start over if the server cannot send just the rest.

    `etag_file` holds the version of the file that `part` is the beginning of, so that two versions are never joined.
    Returns the SHA-256 that the whole file must have, "" if the server gives none.
    """
    known_etag = etag_file.read_text() if part.exists() and etag_file.exists() else ""
    have = part.stat().st_size if known_etag else 0
    headers = {"Accept-Encoding": "identity"}  # otherwise ranges and sizes would count compressed bytes
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": known_etag}
    if token() and url.startswith(endpoint() + "/"):  # requests drops it on redirects to other hosts
        headers["Authorization"] = f"Bearer {token()}"
    with requests.get(url, headers=headers, stream=True, timeout=timeout) as response:
        status, etag = response.status_code, response.headers.get("ETag", response.headers.get("Last-Modified", ""))
        if status in (408, 429) or status >= 500:
            raise TransientError(f"HTTP status {status} {response.reason}")
        if status not in (200, 206, 416):
            # The hub also answers 401 for names that do not exist: they might be private.
            hint = "check the name, or HF_TOKEN" if status in (401, 403) else "check the name, and HF_ENDPOINT, if set"
            refusal = Absent if status == 404 else HubError
            raise refusal(f"{url}: HTTP status {status} {response.reason}; {hint}")
        content_range = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+)", response.headers.get("Content-Range", ""))
        total = int(content_range[2]) if content_range else response.raw.length_remaining
        if status == 416 and have == total:
            return sha256_in_headers(response)  # the last run was killed between the last byte and the rename
        if status == 200:  # the whole file, even if only the rest was asked for
            part.unlink(missing_ok=True)  # first, so that a part is never beside the etag of another version
            etag_file.write_text(etag)
            have = 0
        elif not content_range or content_range[1] != str(have) or etag not in ("", known_etag):
            part.unlink(missing_ok=True)
            raise TransientError("the server sent a different range or version than requested; starting over")
        bar = {"total": total, "initial": have, "desc": part.stem, "disable": None}
        with part.open("ab") as file, tqdm.wrapattr(file, "write", **bar) as file_and_bar:
            for block in response.iter_content(1 << 16):  # at most one block is lost if the connection breaks
                file_and_bar.write(block)
    if total not in (None, part.stat().st_size):
        raise TransientError(f"got {part.stat().st_size:,} of {total:,} bytes")
    return sha256_in_headers(response)


def sha256_in_headers(response: requests.Response) -> str:
    """The hub's checksum of a large file, which is in the redirect to the servers that store it; else ""."""
    chain = [*response.history, response]
    etags = [hop.headers.get("X-Linked-Etag", "") for hop in chain] + [chain[0].headers.get("ETag", "")]
    return next((etag.strip('"') for etag in etags if re.fullmatch('"?[0-9a-f]{64}"?', etag)), "")
