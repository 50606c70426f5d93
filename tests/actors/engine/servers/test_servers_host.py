"""RemoteHost with a scripted server: the host of a remote engine server.

The tests drive it as its worker does.
"""

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from driven_host import DrivenHost
from patient_loop import PatientLoop

from gleaner.actors.engine.servers import host as remote
from gleaner.actors.engine.servers import row_queue as row_exchange
from gleaner.actors.engine.servers.host import RemoteHost
from gleaner.actors.engine.servers.port import (
    Ask,
    Chunk,
    LoadFailed,
    Loads,
    PauseMode,
    ServerDied,
    ServerRefused,
)
from gleaner.actors.engine.worker.port import AwaitedHost, StepCommands, StepResult
from gleaner.actors.protocol.instances import Work
from gleaner.actors.protocol.weights import Fetched
from gleaner.transport.token_frame import Flag

ENDED = Flag.ABORTED | Flag.NO_TOKEN


def fetched(version: int) -> Fetched:
    model = b'{"vocab_size": 200}'
    return Fetched(
        version=version, root=b"r", path="/none", tensors=(), model_config=model, pulled_bytes=0, seconds=0.0
    )


FETCHED = fetched(3)


class ScriptedServer:
    """A wire whose server makes token 100 + n at place n of a request, and one token for a greedy probe."""

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.aborted: list[str] = []
        self.chunk_tokens = 2
        self.made = lambda chunk: chunk  # alters the chunk that it sends
        self.silent_after: int | None = None
        self.refuses: str | None = None
        self.hangs = False
        self.closed = 0
        self.version_name = "3"
        self.staged = FETCHED
        self.fails = ""

    async def start(self, model: Fetched) -> None: ...

    async def stage(self, fetched: Fetched) -> None:
        if self.fails == "stage":
            raise LoadFailed("no room")
        self.staged = fetched

    async def commit(self) -> str:
        if self.fails == "commit":
            raise LoadFailed("not taken")
        return str(self.staged.version)

    async def stream(self, ask: Ask) -> AsyncIterator[Chunk]:
        self.asks.append(ask)
        if self.refuses is not None and "probe" not in ask.rid:
            raise ServerRefused(self.refuses, never=True)
        for first in range(0, ask.max_new_tokens, self.chunk_tokens):
            if self.silent_after is not None and first >= self.silent_after and "probe" not in ask.rid:
                await asyncio.Event().wait()
            places = range(first, min(first + self.chunk_tokens, ask.max_new_tokens))
            last = places[-1] + 1 == ask.max_new_tokens
            tokens = [100 + len(ask.tokens) + place for place in places]
            chunk = Chunk(tokens, [-0.5] * len(tokens), "length" if last else None, 1, self.version_name)
            yield chunk if "probe" in ask.rid else self.made(chunk)
            await asyncio.sleep(0)

    async def abort(self, rids: list[str]) -> None:
        self.aborted += rids

    async def healthy(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()

    async def revert(self) -> str | None:
        return None

    async def loads(self) -> Loads:
        return Loads(0, 0)

    async def version(self) -> str:
        return self.version_name

    async def pause(self, mode: PauseMode) -> None: ...

    async def go_on(self) -> None: ...

    keeps = False

    async def hold(self, rids: list[str]) -> dict[str, int]:
        raise AssertionError("it does not tell what it made")

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    def close(self) -> None:
        self.closed += 1

    async def disconnect(self) -> None: ...


@pytest.fixture
def server() -> ScriptedServer:
    return ScriptedServer()


@pytest.fixture
def host(server: ScriptedServer) -> Iterator[DrivenHost]:
    fills_the_port: AwaitedHost = (remote := RemoteHost(server, stall_s=0.5, serve_s=5.0))
    assert isinstance(fills_the_port, AwaitedHost)
    host = DrivenHost(remote)
    yield host
    host.close()
    assert host.joined(60.0), "a task outlives its host"


def work(ticket: int, new: int = 6, prefix: tuple[int, ...] = ()) -> Work:
    return Work(
        ticket=ticket,
        prompt=array("I", [7, 8, 9]).tobytes(),
        prefix=array("I", prefix).tobytes(),
        seed=5,
        max_new_tokens=new,
        temperature=0.0,
    )


def add(*given: Work, version: int = 3) -> StepCommands:
    return StepCommands(adds=[(version, list(given))])


Rows = list[tuple[int, int, int]]


def rows_of(turn: StepResult) -> Rows:
    if turn.output is None:
        return []
    columns = (turn.output.tickets, turn.output.tokens, turn.output.flags)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def drive(
    host: DrivenHost, commands: StepCommands, until: Callable[[Rows], bool], within_s: float = 60.0
) -> tuple[Rows, list[StepResult]]:
    rows, turns, end_s = [], [], time.monotonic() + within_s
    while not until(rows):
        assert time.monotonic() < end_s, f"only {rows}"
        turns.append(host.turn(commands))
        commands = StepCommands()
        rows += rows_of(turns[-1])
    return rows, turns


def finished(count: int) -> Callable[[Rows], bool]:
    return lambda rows: sum(bool(flags & (Flag.FINISHED | Flag.ABORTED)) for *_, flags in rows) == count


def test_tokens_arrive_in_order_with_end_flags(host: DrivenHost, server: ScriptedServer) -> None:
    host.turn(StepCommands(load=FETCHED))
    rows, turns = drive(host, add(work(11), work(12)), finished(2))
    for ticket in (11, 12):
        own = [(token, flags) for number, token, flags in rows if number == ticket]
        end = Flag.FINISHED | Flag.CUT
        assert own == [(103, Flag.FIRST), (104, 0), (105, 0), (106, 0), (107, 0), (108, end)]
    assert turns[-1].version == 3
    assert turns[-1].root == b"r"


def test_prefix_is_continued_up_to_the_limit(host: DrivenHost, server: ScriptedServer) -> None:
    host.turn(StepCommands(load=FETCHED))
    rows, _ = drive(host, add(work(11, new=6, prefix=(103, 104))), finished(1))
    assert server.asks[-1].tokens.tolist() == [7, 8, 9, 103, 104]
    assert server.asks[-1].max_new_tokens == 4
    assert [token for _, token, _ in rows] == [105, 106, 107, 108]


def test_server_work_is_reported_as_common_decode_steps(host: DrivenHost, server: ScriptedServer) -> None:
    host.turn(StepCommands(load=FETCHED))
    _, turns = drive(host, add(work(11), work(12)), finished(2))
    tokens, prefilled, attended, steps = (
        sum(getattr(turn.work, name) for turn in turns)
        for name in ("tokens", "prefilled", "attended", "steps")
    )
    assert tokens == 12
    assert prefilled == 2 * (3 - 1), "a token of each prompt was in the server's cache"
    assert attended == 2 * sum(range(4, 10))
    assert 6 <= steps <= 12


def test_abort_gives_one_last_row_and_reaches_server(host: DrivenHost, server: ScriptedServer) -> None:
    server.silent_after = 2
    host.turn(StepCommands(load=FETCHED))
    drive(host, add(work(11)), lambda rows: len(rows) == 2)
    rows, _ = drive(host, StepCommands(aborts=[11, 99]), finished(2))
    assert rows == [(11, 0, ENDED), (99, 0, ENDED)]
    assert [rid.rpartition("-")[2] for rid in server.aborted] == ["11"]


def test_new_weights_end_requests_of_older_ones(host: DrivenHost, server: ScriptedServer) -> None:
    server.silent_after = 2
    host.turn(StepCommands(load=FETCHED))
    drive(host, add(work(11)), lambda rows: len(rows) == 2)
    server.version_name = "4"
    rows, turns = drive(host, StepCommands(load=fetched(4)), finished(1))
    assert rows == [(11, 0, ENDED)]
    assert turns[0].version == 4


def test_unstaged_weights_disturb_nothing(host: DrivenHost, server: ScriptedServer) -> None:
    server.silent_after = 2
    host.turn(StepCommands(load=FETCHED))
    drive(host, add(work(11)), lambda rows: len(rows) == 2)
    server.fails = "stage"
    turn = host.turn(StepCommands(load=fetched(4)))
    assert (turn.version, turn.root, turn.load_failed, rows_of(turn)) == (3, b"r", "no room", [])
    server.silent_after, server.fails = None, ""
    drive(host, add(work(12)), finished(1))
    assert server.aborted == []


def test_refused_weights_leave_the_previous_weights(host: DrivenHost, server: ScriptedServer) -> None:
    server.silent_after = 2
    host.turn(StepCommands(load=FETCHED))
    drive(host, add(work(11)), lambda rows: len(rows) == 2)
    server.fails = "commit"
    rows, turns = drive(host, StepCommands(load=fetched(4)), finished(1))
    assert rows == [(11, 0, ENDED)]
    assert (turns[0].version, turns[0].load_failed) == (3, "not taken")
    assert "probe" in server.asks[-1].rid, "a probe must succeed before the server is trusted again"
    server.silent_after = None
    drive(host, add(work(12)), finished(1))


def test_server_that_refused_first_weights_accepts_others(host: DrivenHost, server: ScriptedServer) -> None:
    server.fails = "commit"
    turn = host.turn(StepCommands(load=FETCHED))
    assert (turn.version, turn.load_failed) == (None, "not taken")
    assert host.turn(add(work(1))).refusals[0].why.startswith("it has no weights yet")
    server.fails, server.version_name = "", "4"
    assert host.turn(StepCommands(load=fetched(4))).version == 4
    drive(host, add(work(12), version=4), finished(1))


def test_work_of_another_version_is_refused(host: DrivenHost) -> None:
    assert host.turn(add(work(1))).refusals[0].why.startswith("it has no weights yet")
    host.turn(StepCommands(load=FETCHED))
    refusal = host.turn(add(work(2), version=2)).refusals[0]
    assert refusal.tickets == [2]
    assert refusal.why == "it serves version 3, not 2"
    assert not refusal.never


def test_refusal_of_the_server_is_passed_on(host: DrivenHost, server: ScriptedServer) -> None:
    server.refuses = "too long for the context"
    host.turn(StepCommands(load=FETCHED))
    turn = host.turn(add(work(11)))
    refusal = (turn.refusals or host.turn(StepCommands()).refusals)[0]
    assert (refusal.tickets, refusal.why, refusal.never) == ([11], "too long for the context", True)


@pytest.mark.parametrize("given", [work(4, new=2, prefix=(1, 2)), work(4, new=0), work(4, prefix=(200,))])
def test_impossible_work_is_never_sent(host: DrivenHost, server: ScriptedServer, given: Work) -> None:
    host.turn(StepCommands(load=FETCHED))
    asked = len(server.asks)
    assert host.turn(add(given)).refusals[0].never
    assert len(server.asks) == asked


def test_healthy_server_without_tokens_is_given_up(host: DrivenHost, server: ScriptedServer) -> None:
    server.silent_after = 2
    host.turn(StepCommands(load=FETCHED))
    with pytest.raises(ServerDied, match="no token came"):
        drive(host, add(work(11)), finished(1))


@pytest.mark.parametrize("busy", [True, False], ids=["while it makes tokens", "while it is idle"])
async def test_own_pause_does_not_count_as_server_silence(
    server: ScriptedServer, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped, or got no turn, would discard a server with all its requests."""
    monkeypatch.setattr(remote, "TURN_S", 0.05)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, PatientLoop)
    host = RemoteHost(server, stall_s=5.0, serve_s=60.0)
    await host.awaited_turn(StepCommands(load=FETCHED))
    if busy:
        server.silent_after = 2
        await host.awaited_turn(add(work(11)))
    for _ in range(3):
        await asyncio.sleep(0.6)  # a health check ran meanwhile
        loop.stand_still(60.0)
        await asyncio.sleep(0.1)
        await host.awaited_turn(StepCommands())
    host.close()
    await host.closed()


def test_unresponsive_idle_server_is_given_up(host: DrivenHost, server: ScriptedServer) -> None:
    host.turn(StepCommands(load=FETCHED))
    server.hangs = True
    with pytest.raises(ServerDied, match="did not answer"):
        drive(host, StepCommands(), finished(1))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda chunk: Chunk(chunk.tokens, [float("nan")] * len(chunk.tokens)), "no number"),
        (lambda chunk: Chunk(chunk.tokens, chunk.logprobs, None, 0, "8"), "another client"),
    ],
)
def test_invalid_tokens_are_not_passed_on(
    host: DrivenHost, server: ScriptedServer, made: Callable[[Chunk], Chunk], why: str
) -> None:
    server.made = made
    host.turn(StepCommands(load=FETCHED))
    with pytest.raises(ServerDied, match=why):
        drive(host, add(work(11)), finished(1))


def test_streams_pause_while_no_rows_are_taken(
    host: DrivenHost, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_exchange, "MAX_HELD", 10)
    sent: list[int] = []
    server.made = lambda chunk: (sent.extend(chunk.tokens), chunk)[1]
    host.turn(StepCommands(load=FETCHED))
    host.turn(add(work(11, new=60)))
    time.sleep(0.8)  # longer than `stall_s`: an unread stream does not stall
    assert len(sent) < 30
    rows, _ = drive(host, StepCommands(), finished(1))
    assert rows[-1][1] == 162


def test_order_ends_a_waiting_turn(host: DrivenHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TURN_S", 600.0)  # longer than a turn of a test is waited for
    host.turn(StepCommands(load=FETCHED))
    host.hurry()
    assert rows_of(host.turn(StepCommands())) == []


def test_close_ends_the_turn_and_the_server(host: DrivenHost, server: ScriptedServer) -> None:
    host.turn(StepCommands(load=FETCHED))
    host.close()
    with pytest.raises(ServerDied, match="closed"):
        host.turn(StepCommands())
    assert server.closed
