"""Handover of a dispatch: when an instance is given up.

Silence of the instance counts, a pause of its manager does not.
"""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gleaner.actors.protocol.instances import Dispatch, Work
from gleaner.actors.rollout.dispatch.dispatcher import DISPATCH_DEADLINE_S, Dispatcher
from gleaner.supervisor import AskTimeout, Done

WORK = Work(ticket=7, prompt=b"", prefix=b"", seed=1, max_new_tokens=4, temperature=1.0)
DISPATCH = Dispatch(epoch="1.1", version=1, work=[WORK])


class Ctx:
    """Asks that time out; after each one this much of the manager's own time has passed."""

    def __init__(self, *passed_s: float) -> None:
        self.now_s, self.passed_s = 0.0, list(passed_s)
        self.asked: list[tuple[float, str]] = []

    def turn_time(self) -> float:
        return self.now_s

    def wait(self, *_args: object, **_settings: object) -> nullcontext[None]:
        return nullcontext()

    async def ask(self, _to: object, _message: object, *, deadline_s: float, expect: type, key: str) -> Done:
        self.asked.append((deadline_s, key))
        if not self.passed_s:
            return Done()
        self.now_s += self.passed_s.pop(0)
        raise AskTimeout("no reply by its deadline")


def dispatcher(ctx: Ctx) -> Dispatcher:
    made = Dispatcher.__new__(Dispatcher)
    cast(Any, made)._ctx = ctx
    return made


async def test_dispatch_is_repeated_under_its_key_after_pauses() -> None:
    ctx = Ctx(0.5, 3.0)
    await dispatcher(ctx)._hand_over(cast(Any, SimpleNamespace(worker="spot-1/engine")), DISPATCH)
    assert ctx.asked == [(10.0, "1.1/7"), (9.5, "1.1/7"), (6.5, "1.1/7")]


async def test_instance_that_takes_nothing_is_given_up() -> None:
    ctx = Ctx(4.0, DISPATCH_DEADLINE_S)
    with pytest.raises(AskTimeout):
        await dispatcher(ctx)._hand_over(cast(Any, SimpleNamespace(worker="spot-1/engine")), DISPATCH)
    assert len(ctx.asked) == 2


async def test_silence_of_an_instance_counts_from_the_end_of_a_dispatch_to_it() -> None:
    ctx = Ctx()

    async def slow_commit() -> int:
        ctx.now_s += 60.0
        return 1

    instance = SimpleNamespace(
        name="spot-1/engine", worker="spot-1/engine", order=asyncio.Lock(), heard_s=0.0
    )
    await dispatcher(ctx)._deliver(cast(Any, instance), slow_commit(), DISPATCH)
    assert ctx.asked
    assert instance.heard_s == 60.0
