"""
A hub on this machine, which huggingface_hub downloads from as from huggingface.co.

FOLDER/models/OWNER/NAME and FOLDER/datasets/OWNER/NAME are its repositories. Whatever is asked of
OWNER/broken fails.
"""

import contextlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "1" * 40
REQUEST = re.compile(r"/(?:api/)?(?:(models|datasets)/)?(.+?)/(revision|tree|resolve)/[^/]+/?(.*)")


class Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        kind, name, asked, file = REQUEST.fullmatch(urlsplit(self.path).path).groups()
        repository = self.server.folder / (kind or "models") / name
        path = repository / file
        if repository.name == "broken":
            self.answer(500, {})
        elif not repository.is_dir():
            self.answer(404, {"X-Error-Code": "RepoNotFound"})
        elif asked == "revision":
            self.answer(200, {}, json.dumps({"id": name, "sha": COMMIT}).encode())
        elif asked == "tree":
            files = []
            for path in repository.iterdir():
                files.append(dict(type="file", path=path.name, size=path.stat().st_size, oid="1"))
            self.answer(200, {}, json.dumps(files).encode())
        elif path.exists():
            # the cache keeps files by their ETags
            headers = {"ETag": f'"{path.name}"', "X-Repo-Commit": COMMIT}
            self.answer(200, headers, path.read_bytes())
        else:
            self.answer(404, {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET

    def answer(self, status: int, headers: dict, body: bytes = b""):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serve(folder: Path):
    """Yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.folder = folder
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
