"""An HTTP server on loopback, with answers from the test.

with http_stub(lambda request: HttpReply({"result": []})) as stub:
    ...                       # ask stub.url
assert stub.requests[0]["queries"] == ["who wrote faust"]
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class HttpReply:
    """One answer. A body that isn't bytes is sent as JSON."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False
    """Close the connection instead of answering."""
    last: bool = False
    """Close the connection after answering."""


Answers = Callable[[dict[str, Any]], HttpReply]
"""From a request's JSON, with its `path`, to the answer. Called in the request's own thread."""


class HttpStub(ThreadingHTTPServer):
    """The server's requests and its scripted answers."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, answer: Answers) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.answer = answer
        self.usual = answer
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.connections: set[Any] = set()
        self.came = threading.Event()
        """A request has come."""
        self.running = self.most_at_once = 0
        self.lock = threading.Lock()

    def script(self, *replies: HttpReply | None) -> None:
        """Answer with these in order; the last one stays. None is the usual answer."""
        left = list(replies)

        def answer(request: dict[str, Any]) -> HttpReply:
            with self.lock:
                reply = left.pop(0) if len(left) > 1 else left[0]
            return self.usual(request) if reply is None else reply

        self.answer = answer

    def meet(self, count: int) -> None:
        """In an answer: wait until so many requests were under way at once, on a busy machine too, and a little longer
        for one that is too many."""
        end = time.monotonic() + 20
        while self.most_at_once < count and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(0.02)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that left are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HttpStub

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = self._noted({"path": self.path, **body})
        self.close_connection = reply.drop or reply.last
        if reply.drop:
            return
        content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(content)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):  # the client may have left
            self.wfile.write(content)

    def _noted(self, request: dict[str, Any]) -> HttpReply:
        stub = self.server
        with stub.lock:
            stub.requests.append(request)
            stub.headers.append(dict(self.headers))
            stub.connections.add(self.client_address)
            stub.running += 1
            stub.most_at_once = max(stub.most_at_once, stub.running)
            stub.came.set()
        try:
            return stub.answer(request)
        finally:
            with stub.lock:
                stub.running -= 1

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@contextmanager
def http_stub(answer: Answers) -> Iterator[HttpStub]:
    """A server on a free port; its `url` is `http://127.0.0.1:PORT`."""
    with HttpStub(answer) as stub:
        thread = threading.Thread(target=stub.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield stub
        finally:
            stub.shutdown()
            thread.join()
