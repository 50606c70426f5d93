"""TurnOrder: another seed is another order of what is ready together, within what an event loop promises."""

import asyncio
import itertools
from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from gleaner.sim.loop import SimLoop
from gleaner.sim.process_loop import ProcessLoop
from gleaner.sim.turn_order import LONGEST_S

SEEDS = range(1, 41)
ORDERS = st.integers(1, 2**32)


def ordered(seed: int) -> tuple[SimLoop, ProcessLoop]:
    loop = SimLoop(order_seed=seed)
    return loop, loop.spawn("a", "h")


def test_tasks_woken_together_run_in_each_order_over_seeds() -> None:
    def run(seed: int) -> str:
        loop, process = ordered(seed)
        ran: list[str] = []

        async def waits(name: str, event: asyncio.Event) -> None:
            await event.wait()
            ran.append(name)

        async def main() -> None:
            event = asyncio.Event()
            tasks = [asyncio.ensure_future(waits(name, event)) for name in "ab"]
            await asyncio.sleep(1.0)
            event.set()
            await asyncio.gather(*tasks)

        loop.complete(process, main(), within_s=10.0)
        return "".join(ran)

    assert {run(seed) for seed in SEEDS} == {"ab", "ba"}
    assert run(0) == "ab"


def test_lost_update_between_two_awaits_is_found_only_in_a_drawn_order() -> None:
    """Two requests of one moment, the second of which may only be admitted if the first was refused."""

    def run(seed: int) -> int:
        loop, process = ordered(seed)
        state = {"free": 1, "admitted": 0}

        async def handles(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            if state["free"]:
                await asyncio.sleep(0)  # as an await of something that is ready
                state["free"] -= 1
                state["admitted"] += 1

        async def main() -> None:
            await asyncio.gather(handles(1.0), handles(1.0003))

        loop.complete(process, main(), within_s=10.0)
        return state["admitted"]

    assert run(0) == 1  # turns that take no time never meet
    assert {run(seed) for seed in SEEDS} == {1, 2}


@given(ORDERS, st.integers(2, 20))
def test_callbacks_of_one_pass_keep_their_order(seed: int, count: int) -> None:
    loop, process = ordered(seed)
    ran: list[int] = []
    for number in range(count):
        process.call_soon(ran.append, number)
    loop.run()
    assert ran == list(range(count))


@given(ORDERS, st.lists(st.floats(0.0, 0.01), min_size=2, max_size=20))
def test_timers_of_a_process_keep_the_order_of_their_times(seed: int, delays_s: list[float]) -> None:
    loop, process = ordered(seed)
    ran: list[tuple[float, int]] = []
    for age, delay_s in enumerate(delays_s):
        process.call_later(delay_s, ran.append, (delay_s, age))
    loop.run()
    assert ran == sorted(ran)
    assert len(ran) == len(delays_s)


def test_event_of_a_device_may_overtake_a_timer() -> None:
    class Device:
        def __init__(self, ran: list[str]) -> None:
            self.ran = ran

        def arrives(self) -> None:
            self.ran.append("device")

    Device.arrives.__module__ = "gleaner.sim.disk"

    def run(seed: int) -> list[str]:
        loop, process = ordered(seed)
        ran: list[str] = []
        process.call_at(1.0, ran.append, "timer")
        process.call_at(1.0, Device(ran).arrives)
        loop.run()
        return ran

    assert {tuple(run(seed)) for seed in SEEDS} == {("timer", "device"), ("device", "timer")}


@given(ORDERS)
@example(4893851)
def test_pass_takes_time_within_its_limit(seed: int) -> None:
    loop, process = ordered(seed)
    at_s: list[float] = []

    async def main() -> None:
        for _ in range(50):
            at_s.append(loop.now_s)
            await asyncio.sleep(0)

    loop.complete(process, main(), within_s=60.0)
    took_s = [later - before for before, later in itertools.pairwise(at_s)]
    assert all(0.0 < seconds <= LONGEST_S + 1e-9 for seconds in took_s)  # rounded differences


@given(ORDERS, st.lists(st.sampled_from(["soon", "freeze", "thaw", "slow", "usual"]), max_size=30))
def test_freezing_and_slowing_lose_no_turn_in_a_drawn_order(seed: int, script: list[str]) -> None:
    loop, process = ordered(seed)
    due: list[int] = []
    ran: list[int] = []

    def act(step: int, what: str) -> None:
        acts: dict[str, Callable[[], object]] = {
            "soon": lambda: (due.append(step), process.call_soon(ran.append, step)),
            "freeze": process.freeze,
            "thaw": process.thaw,
            "slow": lambda: process.slow(8.0),
            "usual": lambda: process.slow(1.0),
        }
        acts[what]()

    for step, what in enumerate(script):
        loop.call_at(step * 0.001, act, step, what)
    loop.call_at(100.0, process.thaw)
    loop.run()
    assert ran == due


def test_dead_process_runs_nothing_in_a_drawn_order() -> None:
    loop, process = ordered(7)
    ran: list[int] = []
    process.call_soon(ran.append, 1)
    process.kill()
    loop.run()
    assert not ran
