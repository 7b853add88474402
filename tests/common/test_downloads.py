"""Downloads are whole or tried again; they resume; secrets stay with the hub."""

import hashlib
import os
import threading
from pathlib import Path

import pytest
from file_server import CONTENT, Server, serve

from common.downloads import HubError, download, endpoint


def get(server, folder: Path, **settings) -> bytes:
    """Download within a short time; what lies there must be the file and nothing else."""
    path = folder / "models" / "file.txt"
    settings = {"tries": 4, "pause": 0.01, "timeout": 5} | settings
    assert download(f"{server.url}/file.txt", path, **settings) == path
    assert os.listdir(path.parent) == ["file.txt"]
    return path.read_bytes()


def ranges(server) -> list:
    return [request.get("Range") for request in server.requests]


def test_download_and_not_again(server, tmp_path):
    assert get(server, tmp_path) == CONTENT
    assert get(server, tmp_path) == CONTENT
    assert len(server.requests) == 1
    assert server.requests[0]["Accept-Encoding"] == "identity"  # sizes and ranges are of the file itself


def test_download_goes_on_after_breaks(server, tmp_path):
    server.plan = ["breaks off", "breaks off", 503, 429, 500]
    assert get(server, tmp_path) == CONTENT
    starts = [int(asked[6:-1]) for asked in ranges(server)[1:]]
    assert 0 < starts[0] <= 100_000 < starts[1] <= 200_000 and starts[1:] == [starts[1]] * 4
    assert server.requests[1]["If-Range"] == '"v1"'


def test_download_goes_on_in_a_later_run(server, tmp_path):
    server.plan = ["breaks off", 503, 503, 503, 503]
    with pytest.raises(HubError, match=r"4 consecutive attempts failed \(HTTP status 503 .*to resume"):
        get(server, tmp_path)
    part = (tmp_path / "models" / "file.txt.part").read_bytes()
    assert len(part) > 30_000 and CONTENT.startswith(part)
    assert not (tmp_path / "models" / "file.txt").exists()
    assert get(server, tmp_path) == CONTENT
    assert ranges(server)[-1] == f"bytes={len(part)}-"


@pytest.mark.parametrize(
    ("plan", "expected"),
    {
        "a server without ranges": (["breaks off", "no ranges"], CONTENT),
        "a server without ranges, which breaks off again": (["breaks off", "no ranges, breaks off"], CONTENT),
        "a wrong range": (["breaks off", "wrong range"], CONTENT),
        "less than was asked for": (["breaks off", "half the range", "half the range"], CONTENT),
        "a file that changed": (["changes"], CONTENT[::-1]),
        "a file that changed, where If-Range is ignored": (["changes", "ignores If-Range"], CONTENT[::-1]),
        "a size too large": (["promises too much"], CONTENT),
        "no size": (["no length"], CONTENT),
        "a slow server": (["trickles"], CONTENT),
        "a server that hangs": (["hangs"], CONTENT),
        "a break before the first byte": ([503, 408, 500], CONTENT),
    }.values(),
)
def test_download_is_whole_or_tried_again(server, tmp_path, plan, expected):
    server.plan = plan
    assert get(server, tmp_path, timeout=0.3) == expected
    assert not server.plan


def test_download_without_an_etag_starts_anew(server, tmp_path):
    """Nothing would tell whether the rest belongs to the same file."""
    server.etag, server.plan = "", ["breaks off"]
    assert get(server, tmp_path) == CONTENT
    assert ranges(server) == [None, None]


def test_download_killed_before_the_rename(server, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "file.txt.part").write_bytes(CONTENT)
    (tmp_path / "models" / "file.txt.part.etag").write_text('"v1"')
    assert get(server, tmp_path) == CONTENT
    assert ranges(server) == [f"bytes={len(CONTENT)}-"]


def test_download_of_a_size_that_never_comes(server, tmp_path):
    server.plan = ["promises too much"] * 10
    server.etag = ""
    with pytest.raises(HubError, match="file.txt: 4 consecutive attempts failed"):
        get(server, tmp_path)
    assert not (tmp_path / "models" / "file.txt").exists()
    assert 4 <= len(server.requests) <= 5


def test_download_from_nowhere(tmp_path):
    with Server() as server:
        url = server.url
    with pytest.raises(HubError, match=rf"{url}/x: 2 consecutive attempts failed \(ConnectionError\)"):
        download(f"{url}/x", tmp_path / "x", tries=2, pause=0.01)
    with pytest.raises(HubError, match="fix that"):
        download("no-scheme/x", tmp_path / "x", tries=2, pause=0.01)


@pytest.mark.parametrize(("status", "hint"), [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (404, "HF_ENDPOINT"), (400, "400")])
def test_download_refused(server, tmp_path, monkeypatch, status, hint):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.plan = [status]
    with pytest.raises(HubError) as error:
        get(server, tmp_path)
    text = str(error.value)
    assert f"{server.url}/file.txt: HTTP status {status} " in text and hint in text and "\n" not in text
    assert "hf_secret" not in text
    assert len(server.requests) == 1 and list(tmp_path.glob("*/*")) == []


def test_token_goes_to_the_hub_alone(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert get(server, tmp_path / "not the hub") == CONTENT
    assert "Authorization" not in server.requests[0]
    with serve("localhost") as hub:  # another host name, so that a redirect crosses hosts
        monkeypatch.setenv("HF_ENDPOINT", hub.url + "/")
        hub.plan = ["breaks off", server.url]
        assert get(hub, tmp_path / "the hub") == CONTENT
    assert [request.get("Authorization") for request in hub.requests] == ["Bearer hf_secret"] * 2
    assert "Authorization" not in server.requests[1]
    assert server.requests[1]["Range"] == hub.requests[1]["Range"]  # which does cross


def test_a_wrong_checksum_of_a_file_that_does_not_redirect(server, tmp_path):
    server.etag = f'"{hashlib.sha256(CONTENT).hexdigest()}"'
    assert get(server, tmp_path / "right") == CONTENT
    server.content = CONTENT[::-1]
    with pytest.raises(HubError, match="SHA-256"):
        get(server, tmp_path / "wrong")
    server.etag = '"' + "0" * 40 + '"'  # SHA-1 of a git blob, which is not of the bytes alone
    assert get(server, tmp_path / "git") == CONTENT[::-1]


def test_two_downloads_of_one_file_fetch_it_once(server, tmp_path):
    server.plan = ["trickles"]
    threads = [threading.Thread(target=get, args=(server, tmp_path)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert get(server, tmp_path) == CONTENT  # and no lock is left
    assert len(server.requests) == 1


@pytest.mark.parametrize("secret", ["hf_sec\rret", "hf_sec ret", "hf_sec\nret", "hf_sécret", "hf_sec\x00ret"])
def test_a_token_that_cannot_be_sent_is_not_printed(server, tmp_path, monkeypatch, secret):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setattr(os, "environ", os.environ | {"HF_TOKEN": secret})  # which lets a zero in
    with pytest.raises(HubError, match="^HF_TOKEN contains blanks or characters that no token has; copy it again$"):
        get(server, tmp_path)
    assert not server.requests


def test_white_space_around_a_token_is_not_part_of_it(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", server.url + "\r")
    monkeypatch.setenv("HF_TOKEN", " hf_secret\r\n")
    assert get(server, tmp_path) == CONTENT
    assert server.requests[0]["Authorization"] == "Bearer hf_secret"


@pytest.mark.parametrize(
    "address", ["https://me:pass@mirror.org", "hf-mirror.com", "https://a.org/?key=pass", "https://"]
)
def test_a_password_in_hf_endpoint_is_refused_and_not_printed(monkeypatch, address):
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(HubError, match="HF_ENDPOINT must be an address .* without a user name or password") as error:
        endpoint()
    assert "pass@" not in str(error.value) and "key" not in str(error.value)


def test_what_requests_says_of_a_bad_address_is_not_printed(tmp_path):
    with pytest.raises(HubError, match="InvalidURL; fix that"):
        download("http://[secret", tmp_path / "x")
