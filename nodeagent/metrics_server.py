"""MetricsServer: `/metrics` of a host, asks the host's processes at each scrape.

It asks over their control links. Owns prometheus-client's HTTP server, in a thread of its own. That thread
answers one scrape at a time and uses the event loop only to ask the processes. Owns no figure: `metrics`
defines their meaning.
"""

import asyncio
import concurrent.futures
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from socketserver import TCPServer
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gleaner.nodeagent.exit_codes import IN_USE, USAGE, CannotRun
from gleaner.nodeagent.metrics import families
from gleaner.supervisor import ActorSystem, Address, AskFailed
from gleaner.supervisor.system_messages import SYSTEM, Inspect, SystemState
from gleaner.transport.wire import Peer

ANSWER_S = 1.5
"""Deadline of one process; a stuck one costs a scrape no more than this."""
FRESH_S = 1.0
"""Answers are kept so long: several scrapers cost as much as one."""
CLIENT_S = 5.0
"""A client that does not send or take for so long is disconnected; others wait for it."""
STOP_S = 2.0

log = logging.getLogger("nodeagent")

Seen = tuple[list[SystemState], list[tuple[str, str]]]
"""Processes that answered, and node and process of those that did not."""


def metrics_address(text: str) -> tuple[str, int]:
    """`HOST:PORT` of `--metrics`. Raises CannotRun for anything else, and for wildcards: the user must choose
    explicitly from where a host's figures can be read."""
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise CannotRun(USAGE, f"--metrics {text}: expected HOST:PORT such as 127.0.0.1:9464")
    try:
        wildcard = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        wildcard = host == "*"
    if wildcard:
        raise CannotRun(USAGE, f"--metrics {text}: name one address of this host, such as 127.0.0.1:{port}")
    return host, int(port)


async def look(system: ActorSystem, processes: dict[str, Peer | None]) -> Seen:
    """Ask the processes of a host, this one and its children, all at once; None: its address is not known
    yet."""

    async def one(peer: Peer | None) -> SystemState | None:
        if peer is None:
            return None
        address = Address(name=SYSTEM, endpoint=peer.endpoint, public_key=peer.public_key)
        try:
            return await system.ask(address, Inspect(), deadline_s=ANSWER_S, expect=SystemState)
        except AskFailed:
            return None

    answers = await asyncio.gather(*map(one, processes.values()))
    silent = [name for name, answer in zip(processes, answers, strict=True) if answer is None]
    states = [system.state(), *(answer for answer in answers if answer is not None)]
    return states, [(system.node, name) for name in silent]


class MetricsServer:
    """Serves from its making until `close`.

    Args:
        address: host and port to listen at; port 0: any.
        seen: asks the processes; called on the running loop.

    Raises CannotRun if it cannot listen there.
    """

    def __init__(self, address: tuple[str, int], seen: Callable[[], Awaitable[Seen]]) -> None:
        registry = CollectorRegistry()
        registry.register(_Host(seen, asyncio.get_running_loop()))
        host, port = address
        try:
            self._server = make_server(
                host,
                port,
                make_wsgi_app(registry),
                server_class=_Server6 if ":" in host else _Server,
                handler_class=_Handler,
            )
        except OSError as problem:
            raise CannotRun(
                IN_USE,
                f"--metrics {host}:{port}: {problem.strerror}; give another port, or 0 for a free one",
            ) from problem
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_port}/metrics"
        log.info("metrics at %s", self.url)

    async def close(self) -> None:
        """Stop answering."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(STOP_S)


class _Host(Collector):
    """Called in the server's thread, one scrape at a time."""

    def __init__(self, seen: Callable[[], Awaitable[Seen]], loop: asyncio.AbstractEventLoop) -> None:
        self._seen = seen
        self._loop = loop
        self._kept: list[Metric] = []
        self._kept_s = -FRESH_S

    def describe(self) -> Iterable[Metric]:
        """Nothing is asked when the collector is registered."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Every metric of the host now."""
        if time.monotonic() - self._kept_s >= FRESH_S:
            self._kept = list(families(*self._ask()))
            self._kept_s = time.monotonic()
        return self._kept

    def _ask(self) -> Seen:
        async def ask() -> Seen:
            return await self._seen()

        asked = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        try:
            return asked.result(ANSWER_S + STOP_S)
        except concurrent.futures.TimeoutError:  # this loop itself is held up: an empty answer shows that
            asked.cancel()
            log.warning("metrics: the node agent's own loop was held up for %.1f s", ANSWER_S + STOP_S)
            return [], []


class _Server(WSGIServer):
    request_queue_size = 16

    def server_bind(self) -> None:
        """Bind without asking the name service for this host's full name, which may take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_S  # of each read and write

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a line."""
