"""A hub on this machine, as huggingface_hub sees one; and what it was asked for."""

import contextlib
import hashlib
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "1" * 40


class Hub(ThreadingHTTPServer):
    """repositories: ID ("datasets/owner/name" for a dataset) -> name of a file -> bytes. status:
    that of every request, if not 0."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories = {}
        self.status = 0
        self.requests = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def environment(self, cache: Path, **others: str) -> dict[str, str]:
        """For a process that is to use this hub."""
        settings = {"HF_ENDPOINT": self.url, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1"}
        return os.environ | settings | others

    def handle_error(self, request, client_address):
        pass  # that clients hang up is part of the tests


@contextlib.contextmanager
def serve():
    with Hub() as hub:
        threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
        yield hub
        hub.shutdown()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.server.requests.append(dict(self.headers) | {"method": self.command, "path": path})
        api = re.fullmatch(r"/api/(?:models/)?(.*?)/(revision|tree)/[^/]*", path)
        file = re.fullmatch(rf"/(.*)/resolve/{COMMIT}/(.*)", path)
        files = self.server.repositories.get((api or file)[1])
        if self.server.status:
            self.reply(self.server.status)
        elif files is None:
            self.reply(401, X_Error_Code="RepoNotFound")
        elif file:
            data = files[file[2]]
            checksum = hashlib.sha256(data).hexdigest()
            self.reply(200, data, ETag=f'"{checksum}"', X_Repo_Commit=COMMIT)
        elif api[2] == "tree":
            listed = []
            for name, data in files.items():
                listed.append(dict(type="file", path=name, size=len(data), oid="2" * 40))
            self.reply(200, json.dumps(listed).encode())
        else:
            info = dict(id=api[1].removeprefix("datasets/"), sha=COMMIT, siblings=[])
            self.reply(200, json.dumps(info).encode())
