"""SimLoop: virtual time, and the scheduling of simulated processes.

Processes run in turn, a frozen process waits, and a dead process does nothing.
"""

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.sim.loop import NotSimulated, ProcessLoop, SimLoop, SpinsForever, Stalled


@pytest.fixture
def loop() -> SimLoop:
    return SimLoop()


@given(
    delays=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.0, 0.1, 0.1, 0.25, 1.0])), max_size=30)
)
def test_callbacks_run_by_time_and_ties_by_age(
    delays: list[tuple[int, float]],
) -> None:
    loop = SimLoop()
    processes = [loop.spawn(f"p{number}", "h") for number in range(3)]
    ran: list[tuple[float, int]] = []
    for age, (process, delay) in enumerate(delays):
        processes[process].call_later(delay, lambda age=age: ran.append((loop.now_s, age)))
    loop.run(until_s=2.0)
    assert ran == sorted((delay, age) for age, (_, delay) in enumerate(delays))
    assert loop.now_s == 2.0


def test_ready_callbacks_run_in_fifo_order_across_processes(loop: SimLoop) -> None:
    a, b = loop.spawn("a", "h"), loop.spawn("b", "h")
    ran: list[str] = []

    def again(name: str, process: ProcessLoop, left: int) -> None:
        ran.append(name)
        if left:
            process.call_soon(again, name, process, left - 1)

    a.call_soon(again, "a", a, 2)
    b.call_soon(again, "b", b, 2)
    loop.run()
    assert ran == ["a", "b"] * 3
    assert loop.now_s == 0.0


def test_virtual_hour_passes_at_once_on_a_shared_clock(loop: SimLoop) -> None:
    a, b = loop.spawn("a", "h"), loop.spawn("b", "g")
    seen: list[float] = []

    async def sleeper(seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append(asyncio.get_running_loop().time())

    a.create_task(sleeper(3600.0))
    b.create_task(sleeper(1800.0))
    loop.run()
    assert seen == [1800.0, 3600.0]


def test_process_runs_on_own_loop_without_inherited_context(loop: SimLoop) -> None:
    hand: contextvars.ContextVar[str] = contextvars.ContextVar("hand", default="empty")
    a, b = loop.spawn("a", "h"), loop.spawn("b", "h")
    seen: list[tuple[asyncio.AbstractEventLoop, str]] = []

    def look() -> None:
        seen.append((asyncio.get_running_loop(), hand.get()))

    async def child() -> None:
        look()

    def parent() -> None:
        hand.set("a message")
        a.call_soon(look)
        b.call_soon(look)
        b.call_later(1.0, look)
        b.create_task(child())

    a.call_soon(parent)
    loop.run()
    assert seen == [(a, "a message"), (b, "empty"), (b, "empty"), (b, "empty")]


def test_cancelled_timer_does_not_run_or_use_memory(loop: SimLoop) -> None:
    process = loop.spawn("a", "h")

    async def asker() -> None:
        for _ in range(2000):
            async with asyncio.timeout(30.0):
                await asyncio.sleep(0.001)

    process.create_task(asker())
    loop.run(until_s=10.0)
    assert not loop.findings
    assert len(loop.timers) < 600


@given(script=st.lists(st.sampled_from(["soon", "later", "freeze", "thaw", "wait"]), max_size=40))
def test_freezing_loses_nothing_and_changes_no_order(script: list[str]) -> None:
    """For any freezes, each callback runs once, in the order in which it came due."""
    loop = SimLoop()
    process, due, ran = loop.spawn("a", "h"), [], []

    def act(step: int, what: str) -> None:
        if what == "freeze":
            process.freeze()
        elif what == "thaw":
            process.thaw()
        elif what == "soon":
            due.append((loop.now_s, step))
            process.call_soon(ran.append, step)
        elif what == "later":
            due.append((loop.now_s + 2.5, step))
            process.call_later(2.5, ran.append, step)

    for step, what in enumerate(script):
        loop.call_at(float(step), act, step, what)
    loop.call_at(100.0, process.thaw)
    loop.run()
    assert ran == [step for _, step in sorted(due)]


def test_frozen_process_does_nothing_then_finds_deadlines_passed(loop: SimLoop) -> None:
    process = loop.spawn("a", "h")
    seen: list[str] = []

    async def waits() -> None:
        try:
            async with asyncio.timeout(1.0):
                await asyncio.sleep(50.0)
        except TimeoutError:
            seen.append(f"late at {loop.now_s}")

    process.create_task(waits())
    loop.call_at(0.5, process.freeze)
    loop.call_at(20.0, lambda: seen.append("still frozen"))
    loop.call_at(30.0, process.thaw)
    loop.run(until_s=40.0)
    assert seen == ["still frozen", "late at 30.0"]


def test_killed_process_runs_no_cleanup(loop: SimLoop) -> None:
    """No `finally`, timer or callback of it runs, and the exception that it dies with is not reported."""
    process = loop.spawn("a", "h")
    events: list[str] = []

    async def talks() -> None:
        try:
            await asyncio.sleep(100.0)
        finally:
            events.append("goodbye")

    async def fails() -> None:
        raise ValueError("unseen")

    def dies() -> None:
        process.call_soon(events.append, "soon")
        process.create_task(fails())
        process.kill()
        process.call_soon(events.append, "after")
        process.call_later(1.0, events.append, "much later")

    process.create_task(talks())
    process.call_later(5.0, events.append, "later")
    process.at_death(lambda: events.append("dead"))
    process.call_later(2.0, dies)
    loop.run()
    assert events == ["dead"]
    assert not process.alive
    loop.close()
    assert events == ["dead", "goodbye"]  # after the run, when it is no longer awaited
    assert not loop.findings


def test_frozen_turns_of_a_killed_process_never_run(loop: SimLoop) -> None:
    process = loop.spawn("a", "h")
    ran: list[str] = []
    process.freeze()
    process.call_soon(ran.append, "parked")
    process.kill()
    process.thaw()
    loop.run()
    assert not ran
    assert not process.frozen


def test_slow_process_takes_turns_later_but_in_order(loop: SimLoop) -> None:
    quick, slow = loop.spawn("quick", "h"), loop.spawn("slow", "h")
    ran: list[tuple[str, int]] = []

    async def counts(name: str) -> None:
        for number in range(3):
            ran.append((name, number))
            await asyncio.sleep(0)

    slow.slow(11.0)
    slow.create_task(counts("slow"))
    quick.create_task(counts("quick"))
    loop.run()
    assert ran == [("quick", 0), ("quick", 1), ("quick", 2), ("slow", 0), ("slow", 1), ("slow", 2)]
    assert loop.now_s == pytest.approx(4 * 10 * 100e-6)
    slow.slow(1.0)
    slow.create_task(counts("slow"))
    before = loop.now_s
    loop.run()
    assert loop.now_s == before


def test_unawaited_exception_is_a_finding(loop: SimLoop) -> None:
    process = loop.spawn("a", "h")

    async def fails() -> None:
        raise ValueError("in a task")

    def breaks() -> None:
        raise KeyError("in a callback")

    process.create_task(fails(), name="the task")
    process.call_later(1.0, breaks)
    loop.run()
    loop.close()
    assert [(found.at_s, found.process, type(found.problem)) for found in loop.findings] == [
        (1.0, "a", KeyError),
        (1.0, "a", ValueError),
    ]
    assert "the task" in loop.findings[1].what


def test_timer_due_again_at_once_counts_as_spinning(loop: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gleaner.sim.loop.MAX_TURNS_AT_ONCE", 1000)
    process = loop.spawn("the spinner", "h")
    turns = 0

    def again() -> None:
        nonlocal turns
        turns += 1
        if turns < 5000:  # ends by itself unless a limit ends it
            process.call_at(process.time() - 1.0, again)

    process.call_later(1.0, again)
    with pytest.raises(SpinsForever, match="the spinner"):
        loop.run()
    loop.close()


def test_spinning_process_is_reported_by_name(loop: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gleaner.sim.loop.MAX_TURNS_AT_ONCE", 1000)
    process = loop.spawn("the spinner", "h")

    async def spins() -> None:
        while True:
            await asyncio.sleep(0)

    process.create_task(spins())
    with pytest.raises(SpinsForever, match="the spinner"):
        loop.run()
    loop.close()


@pytest.mark.parametrize(
    "breaks_out",
    [
        lambda process: process.run_in_executor(None, print),
        lambda process: process.call_soon_threadsafe(print),
        lambda process: process.add_reader(0, print),
        lambda process: process.sock_recv(None, 1),
        lambda process: process.subprocess_exec(None),
    ],
)
def test_simulated_process_has_no_way_out(loop: SimLoop, breaks_out: Callable[[ProcessLoop], object]) -> None:
    with pytest.raises(NotSimulated, match="the process"):
        breaks_out(loop.spawn("the process", "h"))


def test_coroutine_that_takes_too_long_is_named(loop: SimLoop) -> None:
    process = loop.spawn("a", "h")

    async def answers() -> int:
        await asyncio.sleep(1.0)
        return 7

    assert loop.complete(process, answers(), within_s=2.0) == 7
    with pytest.raises(Stalled, match="answers"):
        loop.complete(process, answers(), within_s=0.5)
    assert loop.now_s == 1.5


def test_stop_finishes_this_instant_and_nothing_later(loop: SimLoop) -> None:
    process = loop.spawn("a", "h")
    ran: list[str] = []
    process.call_later(1.0, loop.stop)
    process.call_later(1.0, ran.append, "same instant")
    process.call_later(1.1, ran.append, "later")
    loop.run(until_s=9.0)
    assert (ran, loop.now_s) == (["same instant"], 1.0)
    loop.run(until_s=9.0)
    assert (ran, loop.now_s) == (["same instant", "later"], 9.0)


def test_clock_jump_affects_its_host_only(loop: SimLoop) -> None:
    start = loop.wall_ms("h")
    loop.call_at(2.0, loop.jump_wall, "h", -3600.0)
    loop.run(until_s=5.0)
    assert loop.wall_ms("h") == start - 3_595_000
    assert loop.wall_ms("g") == start + 5_000


def test_hash_distinguishes_two_histories() -> None:
    def history(second: str, at_s: float) -> str:
        loop = SimLoop()
        loop.spawn("a", "h")
        loop.call_at(1.0, loop.trace.note, "first", 1, 2.5, b"bytes")
        loop.call_at(at_s, loop.trace.note, second)
        loop.run()
        return loop.trace.hash

    hashes = [history("second", 2.0), history("other", 2.0), history("second", 2.5)]
    assert len(set(hashes)) == 3
    assert history("second", 2.0) == hashes[0]


def test_reading_the_hash_changes_nothing() -> None:
    calm, watched = SimLoop().trace, SimLoop().trace
    for number in range(1000):
        calm.note("line", number)
        watched.note("line", number)
        if number % 7 == 0:
            assert watched.hash
    assert calm.hash == watched.hash


def test_dropped_generator_is_closed_only_while_its_process_lives(loop: SimLoop) -> None:
    closed: list[str] = []

    async def numbers(name: str) -> AsyncGenerator[int, None]:
        try:
            while True:
                yield 1
                await asyncio.sleep(1.0)
        finally:
            await asyncio.sleep(0.5)
            closed.append(name)

    async def first(name: str) -> None:
        source = numbers(name)
        assert await anext(source) == 1
        del source

    async def wait(name: str) -> None:
        async for _ in numbers(name):
            pass

    living, dying = loop.spawn("living", "h"), loop.spawn("dying", "h")
    living.create_task(first("living"))
    dying.create_task(wait("dying"))
    loop.call_at(2.0, dying.kill)
    loop.run(until_s=5.0)
    loop.close()
    assert closed == ["living"]
    assert loop.findings == []
