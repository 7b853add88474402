"""
Files of the Hugging Face hub: downloads that go on where they broke off, and models kept in a cache.

HF_ENDPOINT names a mirror, HF_TOKEN is sent to the hub (or that mirror) alone.

>>> model_directory("roneneldan/TinyStories-1M")  # downloaded at the first call; later ones need no network
PosixPath('/home/me/.cache/nanostories/hub/roneneldan--TinyStories-1M')
"""

import os
import re
import sys
import time
from pathlib import Path

import requests
from tqdm import tqdm

from common.files import sha256_of


class HubError(ValueError):
    """What cannot be had. The message is one line for the user: what is wrong, where, what to do."""


class Absent(HubError):
    """The server has no such file."""


class BrokeOff(Exception):
    """A try that did not bring the whole file, for a reason that may pass."""


def endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


# ---- Download ----
def download(url: str, path: str | Path, tries: int = 6, pause: float = 1.0, timeout: float = 30.0) -> Path:
    """Fetch `url` to `path`, unless it is there. What has come lies in `path`.part: a later call goes on from there.

    Gives up after `tries` tries in a row that brought nothing new; waits `pause` seconds, then twice that, and so on.
    """
    path = Path(path)
    part, etag_file = (path.with_name(path.name + ending) for ending in (".part", ".part.etag"))
    failures, most_bytes = 0, 0
    while not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            sha256 = fetch(url, part, etag_file, timeout)
            if sha256 and sha256_of(part) != sha256:
                part.unlink()
                etag_file.unlink()
                raise HubError(f"{url}: what came has not the SHA-256 that the server gives, and is dropped; run again")
            part.rename(path)
            etag_file.unlink(missing_ok=True)
            break
        except BrokeOff as error:
            reason = str(error)
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
            reason = type(error).__name__  # its text is half a page of pools and sockets
        except OSError as error:  # of our file, or of requests: no address, too many redirects
            raise HubError(f"{url} to {part}: {error.strerror or error}; mend that, then run again") from None
        n_bytes = part.stat().st_size if part.exists() else 0
        failures, most_bytes = 0 if n_bytes > most_bytes else failures + 1, max(n_bytes, most_bytes)
        if failures == tries:
            raise HubError(f"{url}: {reason}, {tries} times in a row; run again later: what came is kept")
        tqdm.write(f"{path.name}: {reason} at {n_bytes:,} bytes, trying again", file=sys.stderr)
        time.sleep(pause * 2**failures)
    return path


def fetch(url: str, part: Path, etag_file: Path, timeout: float) -> str:
    """One try: add to `part` what is missing of the file, or write it anew if that is not to be had.

    `etag_file` keeps which version of the file `part` is the beginning of, so that two versions are never joined.
    Returns the SHA-256 that the whole file must have, "" if the server gives none.
    """
    known_etag = etag_file.read_text() if part.exists() and etag_file.exists() else ""
    have = part.stat().st_size if known_etag else 0
    headers = {"Accept-Encoding": "identity"}  # else ranges and sizes would be those of compressed bytes
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": known_etag}
    if os.environ.get("HF_TOKEN") and url.startswith(endpoint() + "/"):  # requests drops it on the way to another host
        headers["Authorization"] = f"Bearer {os.environ['HF_TOKEN']}"
    with requests.get(url, headers=headers, stream=True, timeout=timeout) as response:
        status, etag = response.status_code, response.headers.get("ETag", response.headers.get("Last-Modified", ""))
        if status in (408, 429) or status >= 500:
            raise BrokeOff(f"HTTP status {status} {response.reason}")
        if status not in (200, 206, 416):
            # A name that is not there is denied as one that is secret.
            hint = "check the name, or HF_TOKEN" if status in (401, 403) else "check the name, and HF_ENDPOINT, if set"
            refusal = Absent if status == 404 else HubError
            raise refusal(f"{url}: HTTP status {status} {response.reason}; {hint}")
        content_range = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+)", response.headers.get("Content-Range", ""))
        total = int(content_range[2]) if content_range else response.raw.length_remaining
        if status == 416 and have == total:
            return promised_sha256(response)  # the last run was killed between the last byte and the rename
        if status == 200:  # the whole file, whether asked for or not
            part.unlink(missing_ok=True)  # first, so that no part ever stands beside an etag that is not its own
            etag_file.write_text(etag)
            have = 0
        elif not content_range or content_range[1] != str(have) or etag not in ("", known_etag):
            part.unlink(missing_ok=True)
            raise BrokeOff("the server's rest does not fit what had come, which is dropped")
        bar = {"total": total, "initial": have, "desc": part.stem, "disable": None}
        with part.open("ab") as file, tqdm.wrapattr(file, "write", **bar) as file_and_bar:
            for block in response.iter_content(1 << 16):  # what is lost when it breaks off
                file_and_bar.write(block)
    if total not in (None, part.stat().st_size):
        raise BrokeOff(f"{part.stat().st_size:,} bytes came where the server promised {total:,}")
    return promised_sha256(response)


def promised_sha256(response: requests.Response) -> str:
    """The hub's checksum of a large file, which stands on its redirect to the servers that have it; else ""."""
    answers = [*response.history, response]
    etags = [answer.headers.get("X-Linked-Etag", "") for answer in answers] + [answers[0].headers.get("ETag", "")]
    return next((etag.strip('"') for etag in etags if re.fullmatch('"?[0-9a-f]{64}"?', etag)), "")
