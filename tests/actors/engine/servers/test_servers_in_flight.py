"""Requests in a server during a weight change: their older tokens are counted.

A request that cannot be counted is handed over.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
from driven_host import DrivenHost

from gleaner.actors.engine.servers import in_flight as holding
from gleaner.actors.engine.servers import row_queue as row_exchange
from gleaner.actors.engine.servers.host import RemoteHost
from gleaner.actors.engine.servers.port import Ask, Chunk, ServerDied, ServerRefused
from gleaner.actors.engine.worker.port import StepCommands, StepResult
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.weights import Fetched
from tests.actors.engine.servers.test_servers_host import (
    ENDED,
    FETCHED,
    Rows,
    ScriptedServer,
    add,
    drive,
    fetched,
    finished,
    rows_of,
    work,
)

TENSORS = (TensorSpec("a", "float32", (1,), 0, 4),)
OLD, NEW = 100, 200  # tokens of version 3 and of version 4
LENGTH = 9


def image(version: int) -> Fetched:
    return msgspec.structs.replace(fetched(version), tensors=TENSORS)


class Holds(ScriptedServer):
    """A server that holds its requests. It has made `made` tokens of each, of which `come` have arrived.

    The others arrive when it pauses, unless they are lost. When it continues, all arrive."""

    keeps = True

    def __init__(self) -> None:
        super().__init__()
        self.made_of: dict[int, int] = {}  # by ticket, under the older weights
        self.come_of: dict[int, int] = {}
        self.lost: set[int] = set()
        self.unknown: set[int] = set()
        self.problem: Exception | None = None
        self.stuck = False
        self.calls: list[str] = []

    def has(self, ticket: int, made: int, come: int) -> None:
        self.made_of[ticket], self.come_of[ticket] = made, come

    async def commit(self) -> str:
        self.calls.append("commit")
        self.version_name = await super().commit()
        return self.version_name

    async def stream(self, ask: Ask) -> AsyncIterator[Chunk]:
        if "probe" in ask.rid:
            self.calls.append("probe")
            async for chunk in super().stream(ask):
                yield chunk
            return
        ticket = int(ask.rid.rpartition("-")[2])
        for place in range(LENGTH):
            while place >= self.come_of[ticket]:
                await asyncio.sleep(0.002)
            token = OLD if place < self.made_of[ticket] else NEW
            yield Chunk([token], [-0.5], "length" if place == LENGTH - 1 else None)

    async def hold(self, rids: list[str]) -> dict[str, int]:
        self.calls.append("hold")
        if self.stuck:
            await asyncio.Event().wait()
        if self.problem is not None:
            raise self.problem
        tickets = {int(rid.rpartition("-")[2]): rid for rid in rids}
        self.come_of |= {ticket: self.made_of[ticket] for ticket in tickets if ticket not in self.lost}
        return {rid: self.made_of[ticket] for ticket, rid in tickets.items() if ticket not in self.unknown}

    async def abort(self, rids: list[str]) -> None:
        self.calls.append("abort")
        await super().abort(rids)

    async def go_on(self) -> None:
        self.calls.append("go on")
        self.come_of = dict.fromkeys(self.come_of, LENGTH)


@pytest.fixture
def server() -> Holds:
    return Holds()


@pytest.fixture
def host(server: Holds) -> Iterator[DrivenHost]:
    host = DrivenHost(RemoteHost(server, stall_s=60.0, serve_s=60.0))
    yield host
    host.close()
    assert host.joined(60.0), "a task outlives its host"


def serving(host: DrivenHost, server: Holds, *tickets: int) -> Rows:
    """Serve version 3 with these requests; the rows that arrived."""
    host.turn(StepCommands(load=FETCHED))
    server.calls.clear()
    coming = sum(server.come_of[ticket] for ticket in tickets)
    new = add(*(work(ticket, LENGTH) for ticket in tickets))
    return drive(host, new, lambda rows: len(rows) == coming)[0]


def flip(host: DrivenHost) -> StepResult:
    return host.turn(StepCommands(load=image(4), keep=True))


def tokens(rows: Rows, ticket: int) -> list[int]:
    return [token for one, token, flags in rows if one == ticket and flags != ENDED]


def test_older_tokens_precede_those_of_newer_weights(host: DrivenHost, server: Holds) -> None:
    server.has(11, made=5, come=2)
    server.has(12, made=3, come=3)
    before = serving(host, server, 11, 12)
    turn = flip(host)
    assert (turn.version, turn.load_failed, turn.kept) == (4, "", [11, 12])
    assert server.calls == ["hold", "commit"], "it pauses until the allowed requests are known"
    assert [token for _, token, _ in rows_of(turn)] == [OLD] * 3, "the tokens in transit"
    after, _ = drive(host, StepCommands(), finished(2))
    assert server.calls == ["hold", "commit", "go on"]
    for ticket, made in ((11, 5), (12, 3)):
        assert tokens(before + rows_of(turn), ticket) == [OLD] * made
        assert tokens(after, ticket) == [NEW] * (LENGTH - made)


def test_disallowed_requests_end_and_others_continue(host: DrivenHost, server: Holds) -> None:
    server.has(11, made=2, come=2)
    server.has(12, made=3, come=3)
    serving(host, server, 11, 12)
    assert flip(host).kept == [11, 12]
    rows, _ = drive(host, StepCommands(aborts=[12]), finished(2))
    assert [row for row in rows if row[0] == 12] == [(12, 0, ENDED)]
    assert tokens(rows, 11) == [NEW] * (LENGTH - 2)
    assert [rid.rpartition("-")[2] for rid in server.aborted] == ["12"]


def test_incomplete_or_unknown_requests_are_not_kept(
    host: DrivenHost, server: Holds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "SETTLE_S", 0.1)  # for tokens that never arrive
    server.has(11, made=2, come=2)
    for ticket in (12, 13):
        server.has(ticket, made=4, come=2)
    server.lost, server.unknown = {12}, {13}
    serving(host, server, 11, 12, 13)
    turn = flip(host)
    assert turn.kept == [11]
    ended = [ticket for ticket, _, flags in rows_of(turn) if flags == ENDED]
    assert ended == [12, 13]
    rows, _ = drive(host, StepCommands(), finished(1))
    assert tokens(rows, 12) == tokens(rows, 13) == [], "no token of these requests follows"


@pytest.mark.parametrize("how", ["refuses", "late"])
def test_server_that_does_not_hold_hands_requests_over(
    host: DrivenHost, server: Holds, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.has(11, made=4, come=2)
    serving(host, server, 11)
    if how == "late":
        monkeypatch.setattr(holding, "HOLD_S", 0.1)
        server.stuck = True
    else:
        server.problem = ServerRefused("it is busy", never=False)
    turn = flip(host)
    assert (turn.version, turn.kept) == (4, [])
    assert rows_of(turn)[-1] == (11, 0, ENDED)
    assert [call for call in server.calls if call != "abort"] == ["hold", "go on", "commit", "probe"]


def test_failed_load_keeps_requests_under_previous_weights(host: DrivenHost, server: Holds) -> None:
    server.has(11, made=4, come=2)
    before = serving(host, server, 11)
    server.fails = "commit"
    turn = flip(host)
    assert (turn.version, turn.load_failed, turn.kept) == (3, "not taken", None)
    assert "go on" in server.calls
    rows = before + rows_of(turn)  # the request may have ended within that turn
    rows += drive(host, StepCommands(), lambda more: finished(1)(rows + more))[0]
    assert len(tokens(rows, 11)) == LENGTH
    assert not server.aborted


def test_server_that_dies_while_holding_is_replaced(host: DrivenHost, server: Holds) -> None:
    server.has(11, made=4, come=2)
    serving(host, server, 11)
    server.problem = ServerDied("it is gone")
    with pytest.raises(ServerDied, match="it is gone"):
        flip(host)


def test_server_that_counts_too_few_tokens_dies(host: DrivenHost, server: Holds) -> None:
    server.has(11, made=4, come=3)
    serving(host, server, 11)
    server.made_of[11] = 2
    with pytest.raises(ServerDied, match="reports 2 tokens .* 3 arrived"):
        flip(host)


def test_request_with_too_many_rows_is_handed_over(
    host: DrivenHost, server: Holds, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.has(11, made=2, come=2)
    server.has(12, made=7, come=2)
    serving(host, server, 11, 12)
    monkeypatch.setattr(row_exchange, "MAX_ROWS", 4)
    turn = flip(host)
    assert len(rows_of(turn)) == 4
    assert turn.kept == [11]
    rows, _ = drive(host, StepCommands(), finished(2))
    assert tokens(rows, 12) == [OLD], "the one remaining token before the end"
    assert (12, 0, ENDED) in rows


def test_nothing_is_held_without_requests_to_keep(host: DrivenHost, server: Holds) -> None:
    host.turn(StepCommands(load=FETCHED))
    server.calls.clear()
    assert flip(host).kept == []
    assert server.calls == ["commit", "probe"]
    server.has(11, made=4, come=2)
    drive(host, add(work(11, LENGTH), version=4), lambda rows: len(rows) == 2)
    assert host.turn(StepCommands(load=image(5))).kept is None
    assert "hold" not in server.calls
