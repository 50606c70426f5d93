"""Instances of production on a modelled engine: worker, ring, registration.

All but the engine is real. A decode step takes its time whatever the width and makes a token for every
request.
"""

import threading
from collections.abc import Iterable

import numpy as np

from gleaner.actors.engine.worker.engine_port import StepOutput
from gleaner.actors.engine.worker.port import Refusal, StepCommands, StepResult
from gleaner.actors.engine.worker.settings import WorkerSettings
from gleaner.actors.engine.worker.worker import RolloutWorker
from gleaner.actors.protocol.weights import Fetch, Fetched
from gleaner.configs.schema import Config
from gleaner.supervisor import Actor, handles
from gleaner.transport.token_frame import Flag


class PacedHost:
    """An `EngineHost` with a token of every request each `step_s`; no request ends by itself."""

    engines = 1
    cache_tokens = 0
    weight_tokens = 0
    device = None
    halves = False

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._version: int | None = None
        self._root = b""
        self._tickets: dict[int, None] = {}
        self._first: list[int] = []
        self._steps = 0
        self._pause = threading.Event()

    def stage(self, fetched: Fetched) -> None:
        """See `EngineHost`: there is nothing to prepare."""

    def turn(self, orders: StepCommands) -> StepResult:
        """See `EngineHost`."""
        if orders.load is not None:
            self._version, self._root = orders.load.version, orders.load.root
        for ticket in orders.aborts:
            self._tickets.pop(ticket, None)
        refusals = []
        for version, work in orders.adds:
            given = [one.ticket for one in work]
            if version != self._version:
                refusals.append(Refusal(given, f"serves {self._version}"))
            else:
                self._tickets |= dict.fromkeys(given)
        output = self._step(orders.aborts) if self._tickets or orders.aborts else None
        return StepResult(output, refusals, self._version, self._root, not self._tickets)

    def hurry(self) -> None:
        """See `EngineHost`: a turn of this one waits for no other."""

    def close(self) -> None:
        """See `EngineHost`: nothing outlives it."""

    def _step(self, aborted: Iterable[int]) -> StepOutput:
        self._pause.wait(self._step_s)
        self._steps += 1
        ended = list(aborted)
        tickets = np.fromiter((*self._tickets, *ended), np.uint32)
        flags = np.zeros(len(tickets), np.uint8)
        flags[len(self._tickets) :] = Flag.ABORTED | Flag.NO_TOKEN
        tokens = np.where(flags == 0, (tickets + np.uint32(31 * self._steps)) % 150_000, 0)
        return StepOutput(
            tickets, tokens.astype(np.uint32), np.where(flags == 0, -0.5, 0).astype(np.float32), flags
        )


class ModelledWorker(RolloutWorker):
    """A RolloutWorker whose stream can be read."""

    def __init__(self, config: Config, node: str, step_s: float) -> None:
        super().__init__(WorkerSettings.of(config), node, "preemptible", PacedHost(step_s))

    @property
    def made(self) -> int:
        """Frames so far; 0 before it has a stream."""
        return self._sender.last_seq if hasattr(self, "_sender") else 0

    @property
    def acked(self) -> int:
        """Frames that the manager has acknowledged."""
        return self._sender.last_seq - self._sender.unacknowledged if hasattr(self, "_sender") else 0

    @property
    def resent(self) -> int:
        """Frames that were sent again."""
        return self._sender.resent if hasattr(self, "_sender") else 0


class NoWeights(Actor):
    """A TransferAgent for engines that load nothing."""

    @handles(Fetch)
    async def fetch(self, message: Fetch) -> Fetched:
        """The version is here already."""
        return Fetched(
            version=message.version,
            root=message.root,
            path="",
            tensors=(),
            model_config=b"",
            pulled_bytes=0,
            seconds=0.0,
        )
