"""A scripted reward service on loopback that records its requests."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[Any], None]
"""Answers the request of a handler; `handler.body` is the request's body."""


@dataclass
class Call:
    """A request that the service received."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]


@dataclass
class Service:
    """answers: in sequence, the last one repeatedly. held: an event that answers wait for."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    busy: int = 0
    most_busy: int = 0


def replies(value: object, status: int = 200, **headers: str) -> Answer:
    """An answer: bytes as they are, anything else as JSON."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, text in headers.items():
            handler.send_header(name.replace("_", "-"), text)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def closes(handler: BaseHTTPRequestHandler) -> None:
    """End the connection without an answer."""
    handler.close_connection = True


def half(handler: BaseHTTPRequestHandler) -> None:
    """End the connection within the answer."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.wfile.write(b'{"score":')
    handler.close_connection = True


def drips(handler: BaseHTTPRequestHandler) -> None:
    """An answer without an end."""
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b" " * 2**16)
    except OSError:
        handler.close_connection = True


@contextmanager
def service() -> Iterator[Service]:
    """A service until the end of the block."""
    found = Service()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
            with lock:
                found.calls.append(Call(self.command, self.path, self.body, dict(self.headers)))
                answer = found.answers.pop(0) if len(found.answers) > 1 else found.answers[0]
                found.busy += 1
                found.most_busy = max(found.most_busy, found.busy)
            try:
                answer(self)
            finally:
                with lock:
                    found.busy -= 1

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_address[1]}/score"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield found
    finally:
        found.held.set()
        server.shutdown()
        thread.join()
        server.server_close()
