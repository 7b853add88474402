"""An OpenAI-compatible server that grades as heuristic_judge.py does, unless it is told to fail or
to say something."""

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Callable

import heuristic_judge

# (what, ...): one of the methods of FaultyJudge that end in _fault, and its arguments
Fault = tuple | None


class FaultyJudge(heuristic_judge.Handler):
    """server.fault(number of the request, request) says what goes wrong; None: nothing does."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = json.loads(body)
        received = dict(path=self.path, key=self.headers["Authorization"])
        with self.server.lock:
            self.server.requests.append(request | received)
            number = len(self.server.requests)
        fault = self.server.fault(number, request)
        if fault:
            getattr(self, f"{fault[0]}_fault")(*fault[1:])
        else:
            self.answer(request)

    def send(self, status: int, body: bytes, length: int | None = None, headers=None):
        """length: that it promises."""
        self.send_response(status)
        self.send_header("Content-Length", str(length or len(body)))
        for name, value in (headers or {"Content-Type": "application/json"}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def status_fault(self, status: int, headers=None, message="busy"):
        error = dict(error=dict(message=message))
        self.send(status, json.dumps(error).encode(), headers=headers)

    def hang_fault(self):
        self.server.over.wait()
        self.close_connection = True

    def drop_fault(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def raw_fault(self, body: bytes, status: int = 200):
        """Such as what a proxy says of a server that is down."""
        self.send(status, body)

    def drip_fault(self, seconds: float):
        """An answer that never ends, and is never silent for longer than this."""
        with contextlib.suppress(OSError):
            self.send(200, b" ", length=10**6)
            while not self.server.over.wait(seconds):
                self.wfile.write(b" ")
                self.wfile.flush()
        self.close_connection = True

    def cut_fault(self, body: bytes):
        """Promises more than comes."""
        self.send(200, body, length=len(body) + 50)
        self.wfile.flush()
        self.drop_fault()

    def say_fault(
        self,
        text: str | list | None,
        finish_reason="stop",
        refusal: str | None = None,
        usage=(100, 10),
    ):
        """text: the content, which may be a list of parts. usage: tokens in and out; None: no
        counts are given."""
        message = dict(role="assistant", content=text, refusal=refusal)
        choice = dict(index=0, message=message, finish_reason=finish_reason)
        answer = dict(id="0", object="chat.completion", created=0, model="m", choices=[choice])
        if usage:
            answer["usage"] = dict(prompt_tokens=usage[0], completion_tokens=usage[1])
            with self.server.lock:
                self.server.counted.append(usage)
        self.send(200, json.dumps(answer).encode())


def refusal_of(request: dict, *names: str) -> Fault:
    """As OpenAI answers settings that a model does not take, one at a time."""
    for name in names:
        if name in request:
            return "status", 400, {}, f"Unsupported parameter: '{name}' is not supported."
    return None


def say(*answer) -> Callable[[int, dict], Fault]:
    """Each request is answered with this text (and finish_reason, refusal, usage)."""
    return lambda number, request: ("say", *answer)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """A client that was killed leaves connections behind."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


@contextlib.contextmanager
def serve(fault: Callable[[int, dict], Fault] = lambda number, request: None):
    """-> a server with .url, .requests so far, and .fault, which may be changed."""
    server = Server(("127.0.0.1", 0), FaultyJudge)
    server.requests = []
    server.counted = []  # (tokens in, tokens out) of each reply, as a bill would have them
    server.lock = threading.Lock()
    server.over = threading.Event()
    server.fault = fault
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
