"""A server on this machine that fails in every way we could think of."""

import contextlib
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

CONTENT = np.random.default_rng(0).bytes(300_000)


class Server(ThreadingHTTPServer):
    """Serves `content` with ranges, as the hub does. `plan` holds a fault for each of the next requests."""

    def __init__(self, host="127.0.0.1", handler=None):
        super().__init__((host, 0), handler or Handler)
        self.content, self.etag, self.plan, self.requests = CONTENT, '"v1"', [], []
        self.url = f"http://{host}:{self.server_port}"

    def handle_error(self, request, client_address):
        pass  # that clients hang up is part of the tests


@contextlib.contextmanager
def serve(host="127.0.0.1", handler=None):
    """A server at work."""
    with Server(host, handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        server, content = self.server, self.server.content
        fault = server.plan.pop(0) if server.plan else None
        server.requests.append(dict(self.headers) | {"path": self.path})
        if isinstance(fault, int):
            return self.send_error(fault)
        if isinstance(fault, str) and fault.startswith("http"):
            self.send_response(302)
            self.send_header("Location", fault + self.path)
            return self.end_headers()
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        same = self.headers.get("If-Range") in (None, server.etag)
        ranges = "no ranges" not in str(fault) and (same or fault == "ignores If-Range")
        start = int(asked[1]) if asked and ranges else None
        if start is not None and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        start = start - 7 if start and fault == "wrong range" else start
        body = content[start or 0 :][: 50_000 if fault == "half the range" else None]
        self.send_response(200 if start is None else 206)
        if start is not None:
            self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(content)}")
        if server.etag:
            self.send_header("ETag", server.etag)
        if fault != "no length":
            self.send_header("Content-Length", str(len(body) + (5000 if fault == "promises too much" else 0)))
        self.end_headers()
        if fault == "hangs":
            time.sleep(1)
        elif fault == "trickles":
            for i in range(0, len(body), 50_000):
                self.wfile.write(body[i : i + 50_000])
                time.sleep(0.1)
        else:
            self.wfile.write(body[: 100_000 if "breaks off" in str(fault) or fault == "changes" else None])
        if fault == "changes":
            server.content, server.etag = CONTENT[::-1], '"v2"'
