"""Side effects of a simulated run, observed by the interpreter's audit hook.

A run touches nothing outside of itself. This finds what a check of the source cannot show.
"""

import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gleaner.configs.load import load
from gleaner.sim.cluster import SimCluster
from gleaner.sim.outcome import Outcome
from gleaner.sim.run_setup import RunSetup

SETS = ["job.steps=1", "task.heldout_problems=4", "rollout.prompts=4", "rollout.samples=2", "fleet.trace="]
TOUCHES = ("open", "socket.", "subprocess.", "os.", "mmap.", "shutil.", "tempfile.", "ctypes.")
"""Prefixes of the names of audit events about files, sockets and processes."""
HARMLESS = {"os.putenv", "os.unsetenv"}
OURS = ("actors", "supervisor", "nodeagent", "transport", "configs", "sim")
"""Packages of `gleaner`."""
WAITS_FOR_IT = "gleaner.sim.cluster"
"""This code measures how long a run takes for its caller; no process of the cluster sees that time."""


class Listener:
    """An audit hook. Python cannot remove it, so it records events only while it is enabled."""

    def __init__(self) -> None:
        self.events: list[str] | None = None
        sys.addaudithook(self._record)

    def _record(self, event: str, args: tuple[object, ...]) -> None:
        if self.events is not None and event.startswith(TOUCHES) and event not in HARMLESS:
            self.events.append(f"{event} {args[:1]}")


@pytest.fixture(scope="module")
def listener() -> Listener:
    return Listener()


@contextmanager
def recording_clocks_and_draws(events: list[str]) -> Iterator[None]:
    """Calls from our modules of the machine's clocks and of the shared random generator."""
    patch = pytest.MonkeyPatch()

    def spy(name: str, plain: Callable[..., object]) -> Callable[..., object]:
        def called(*args: object) -> object:
            caller = str(sys._getframe(1).f_globals.get("__name__", ""))
            if caller.partition(".")[2].partition(".")[0] in OURS and caller != WAITS_FOR_IT:
                events.append(f"{name}() in {caller}")
            return plain(*args)

        return called

    for module, names in (
        (time, ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep")),
        (random, ("random", "randrange", "choice", "uniform", "getrandbits", "shuffle")),
    ):
        for name in names:
            patch.setattr(module, name, spy(f"{module.__name__}.{name}", getattr(module, name)))
    started = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        events.append(f"threading.Thread.start of {thread.name}")
        started(thread)

    patch.setattr(threading.Thread, "start", start)
    try:
        yield
    finally:
        patch.undo()


def touched(listener: Listener, *planted: Callable[[], object]) -> tuple[Outcome, list[str]]:
    """A whole run and the events that it caused; `planted` runs in the middle of it."""
    cluster = SimCluster(RunSetup(load("quickstart", SETS), seed=1))
    for number, each in enumerate(planted):
        cluster.loop.call_at(4.0 + 0.1 * number, each)
    listener.events = events = []
    try:
        with recording_clocks_and_draws(events):
            outcome = cluster.run()
    finally:
        listener.events = None
    return outcome, events


def test_simulated_run_touches_nothing_outside_of_itself(listener: Listener) -> None:
    SimCluster(RunSetup(load("quickstart", SETS), seed=1)).run()  # import now what is imported late
    outcome, events = touched(listener)
    assert outcome.ended == "done"
    assert events == []


def test_planted_side_effect_is_detected(listener: Listener) -> None:
    ours: dict[str, object] = {"__name__": "gleaner.actors.rollout.manager", "time": time, "random": random}
    sources = ("time.time()", "time.monotonic()", "random.random()")
    _, events = touched(
        listener,
        lambda: Path("/dev/null").read_bytes(),
        lambda: socket.socket().close(),
        lambda: threading.Thread(target=len, args=("",)).start(),
        lambda: next(Path("/tmp").iterdir(), None),
        *(lambda source=source: eval(source, ours) for source in sources),  # type: ignore[misc]
    )
    for begin in ("open", "socket.__new__", "threading.Thread.start", "os.listdir"):
        assert any(one.startswith(begin) for one in events), (begin, events)
    assert events[-3:] == [f"{source} in gleaner.actors.rollout.manager" for source in sources]
