"""Odd messages to manager and balancer: answered or refused without a crash.

The next life of the manager, which replays the journal, survives them too.
"""

import asyncio
import math
import tempfile
from array import array
from collections.abc import Mapping
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from gleaner.actors.protocol.balancer import (
    EngineMeasured,
    Holding,
    InstanceServes,
    InstanceUp,
    LoadChange,
    LoadChanged,
    Place,
    Rebalance,
)
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.instances import (
    Abort,
    CannotTake,
    Dispatch,
    RegisterInstance,
    ServeWeights,
    Serving,
    Withdraw,
)
from gleaner.actors.protocol.requests import Generate
from gleaner.actors.protocol.rollout import (
    BatchReport,
    GroupFates,
    Groups,
    PublishVersion,
    ReleaseBatch,
    RolloutFigures,
    RolloutStatus,
    StepEnded,
    SubmitBatch,
    TakeGroups,
    Weights,
)
from gleaner.actors.protocol.throughput import Paces, PacesAre, Work
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.actors.rollout.state.events import RequestsDue
from gleaner.configs.schema import Config
from gleaner.supervisor import Actor, Address, Crashed, Done, Message, Refused, Unreachable, handles
from gleaner.supervisor.testing import TestSystem

MANAGER, BALANCER, INSTANCE = "rollout/manager", "rollout/balancer", "spot/engine"

INTS = st.sampled_from([-(2**63), -(2**31) - 1, -2, -1, 0, 1, 2, 3, 17, 2**31, 2**32, 2**63 - 1])
FLOATS = st.sampled_from([-math.inf, -1e300, -1.0, -1e-9, 0.0, 1e-9, 0.5, 1e9, 1e300, math.inf, math.nan])
NAMES = st.sampled_from(["step-1", "step-2", "generate-a", "", "eval/first", "x" * 300, INSTANCE])
TOKENS = st.sampled_from([(), (1, 2), (-1,), (2**32,), (5,) * 129, (0,) * 128])
RAW = st.sampled_from([b"", b"\x01", bytes(4), bytes(8), b"\xff" * 8, bytes(12), bytes(4 * 129)])
MANY = st.sampled_from([[], [0], [0, 0, 0], [-1, 2**62], list(range(5000))])


class Worker(Actor):
    """Accepts everything, and does nothing."""

    @handles(Dispatch)
    async def dispatch(self, message: Dispatch) -> None:
        return None

    @handles(Abort)
    async def abort(self, message: Abort) -> None:
        return None

    @handles(ServeWeights)
    async def serve(self, message: ServeWeights) -> None:
        return None


class HastyManager(RolloutManager):
    """Ends each submitted batch at once, without a token, so that there are groups to take."""

    @handles(SubmitBatch)
    async def submit(self, message: SubmitBatch) -> Done:
        done = await super().submit(message)
        requests = [log.id for log in self._state.log.batches[message.batch.batch].requests()]
        self._act(await self._journaled.record(RequestsDue(requests=tuple(requests))))
        return done


def nearly(
    cls: type[Message], good: Mapping[str, object], odd: Mapping[str, st.SearchStrategy[object]]
) -> st.SearchStrategy[Message]:
    """A correct message but for one or two fields."""
    fields = st.lists(st.sampled_from(sorted(odd)), max_size=2, unique=True)
    return fields.flatmap(
        lambda names: st.fixed_dictionaries({name: odd[name] for name in names}).map(
            lambda drawn: cls(**{**good, **drawn})
        )
    )


WEIGHTS = Weights(version=1, root=b"root-1", sources=("r/transfer",))
weights = st.builds(
    Weights,
    version=st.one_of(st.integers(0, 3), INTS),
    root=st.sampled_from([b"root-1", b"root-2", b""]),
    sources=st.sampled_from([(), ("r/transfer",)]),
)
PROMPTS = tuple(Prompt(split="train", index=g, tokens=(2, 3), seeds=(4, 5)) for g in range(3))
prompts = st.lists(
    st.builds(
        Prompt,
        split=st.just("train"),
        index=INTS,
        tokens=TOKENS,
        seeds=st.sampled_from([(), (1,), (-1, 2**63 - 1)]),
    ),
    max_size=2,
).map(tuple)
SUBMITTED = {"batch": "step-1", "version": 1, "prompts": PROMPTS, "max_new_tokens": 4, "wanted": 2, "most": 4}
batches = nearly(
    BatchSubmitted,
    SUBMITTED,
    {
        "batch": NAMES,
        "version": INTS,
        "prompts": prompts,
        "max_new_tokens": INTS,
        "temperature": FLOATS,
        "wanted": INTS,
        "most": INTS,
        "drop_uniform": st.booleans(),
        "over_sampling": FLOATS,
        "again": INTS,
        "min_version": st.one_of(st.none(), INTS),
        "scored": st.booleans(),
    },
)
GENERATE = {"id": "a", "prompt": array("I", [2, 3]).tobytes(), "max_new_tokens": 4}
messages = {
    "submit": st.builds(SubmitBatch, batch=batches, weights=st.one_of(st.just(WEIGHTS), weights)),
    "publish": st.builds(PublishVersion, weights=weights),
    "generate": nearly(
        Generate,
        GENERATE,
        {
            "id": st.sampled_from(["a", "b", "", "x" * 300, "a/b", "\x00"]),
            "prompt": RAW,
            "max_new_tokens": INTS,
            "temperature": FLOATS,
            "seed": INTS,
            "min_version": INTS,
            "exact_version": INTS,
            "wait_s": FLOATS,
            "deadline_s": FLOATS,
            "accepted": INTS,
            "accepted_sha256": RAW,
            "attempt": INTS,
        },
    ),
    "take": nearly(
        TakeGroups,
        {"batch": "step-1", "taker": 1, "have": [], "min_groups": 1, "wait_s": 0.0},
        {
            "batch": NAMES,
            "taker": INTS,
            "have": MANY,
            "min_groups": INTS,
            "wait_s": FLOATS,
            "dropped": st.one_of(st.none(), INTS),
        },
    ),
    "fates": st.builds(GroupFates, batch=NAMES),
    "ended": st.builds(StepEnded, batch=NAMES),
    "report": st.builds(BatchReport, batch=NAMES),
    "release": st.builds(ReleaseBatch, batch=NAMES),
    "serving": nearly(
        Serving,
        {"instance": INSTANCE, "incarnation": 1, "version": 1, "root": b"root-1"},
        {"instance": NAMES, "incarnation": INTS, "version": INTS, "root": RAW},
    ),
    "withdraw": nearly(
        Withdraw,
        {"instance": INSTANCE, "grace_s": 0.0},
        {"instance": NAMES, "grace_s": FLOATS, "leaves": st.booleans()},
    ),
    "cannot": nearly(
        CannotTake,
        {"instance": INSTANCE, "incarnation": 1, "tickets": [1], "why": "full"},
        {"instance": NAMES, "incarnation": INTS, "tickets": MANY, "version": INTS},
    ),
}
registrations = {
    "kind": st.sampled_from(["preemptible", "reserved", "", "gold"]),
    "slots": INTS,
    "received": INTS,
    "engines": INTS,
    "cache_tokens": INTS,
}
OTHER = "reserved/engine"
OTHER_UP = {
    "instance": OTHER,
    "incarnation": 1,
    "kind": "reserved",
    "slots": 4,
    "pending": 0,
    "executing": 1,
}
numbers = st.sampled_from([b"", b"\x01", bytes(8), bytes(16)])
balancing = {
    "load": st.builds(
        LoadChanged,
        changes=st.lists(
            st.builds(
                LoadChange,
                instance=st.just(OTHER),
                incarnation=st.one_of(st.just(1), INTS),
                dispatched=INTS,
                started=INTS,
                ended_executing=INTS,
                ended_pending=INTS,
            ),
            max_size=2,
        ),
    ),
    "place": nearly(
        Place,
        {"roots": {1: b"root-1"}, "count": 2},
        {
            "roots": st.dictionaries(INTS, RAW, max_size=2),
            "count": INTS,
            "moved": st.sampled_from([("nobody",), (OTHER,) * 3]),
        },
    ),
    "up": nearly(
        InstanceUp,
        {**OTHER_UP, "instance": "another"},
        {
            "kind": registrations["kind"],
            "slots": INTS,
            "pending": INTS,
            "executing": INTS,
            "incarnation": INTS,
        },
    ),
    "measured": st.builds(
        EngineMeasured,
        instance=st.just(OTHER),
        incarnation=st.just(1),
        sums=st.lists(
            st.builds(Work, seconds=FLOATS, steps=FLOATS, tokens=FLOATS, attended=FLOATS, prefilled=FLOATS),
            max_size=3,
        ),
    ),
    "rebalance": st.builds(
        Rebalance,
        gates=st.lists(st.dictionaries(INTS, RAW, max_size=1), max_size=1),
        holdings=st.lists(
            st.builds(
                Holding,
                instance=st.just(OTHER),
                incarnation=st.just(1),
                tickets=numbers,
                context=numbers,
                expected=numbers,
                gate=numbers,
                movable=numbers,
                executing=numbers,
                busy=st.booleans(),
            ),
            max_size=2,
        ),
    ),
}
sequences = st.lists(
    st.one_of(
        *(one.map(lambda message: (MANAGER, message)) for one in messages.values()),
        *(one.map(lambda message: (BALANCER, message)) for one in balancing.values()),
        st.lists(st.sampled_from(sorted(registrations)), max_size=2, unique=True)
        .flatmap(lambda names: st.fixed_dictionaries({name: registrations[name] for name in names}))
        .map(lambda odd: (MANAGER, odd)),
    ),
    min_size=1,
    max_size=12,
)


async def send_all(directory: Path, sent: list[tuple[str, Message | dict[str, object]]]) -> list[object]:
    """Send all messages to a manager that has a batch, an instance and weights, and to a balancer with
    another instance. Then ask the manager's next life for its state. Returns the answers that arrived."""
    async with TestSystem(directory) as system:
        instance = system.spawn(INSTANCE, Worker)
        system.spawn(BALANCER, lambda: LoadBalancer(4))
        system.spawn(MANAGER, lambda: HastyManager(ManagerSettings.of(Config())))
        await registered(system, instance, {})
        serving = Serving(instance=INSTANCE, incarnation=instance.incarnation, version=1, root=WEIGHTS.root)
        await system.ask(MANAGER, serving, Message)
        await system.ask(MANAGER, SubmitBatch(batch=BatchSubmitted(**SUBMITTED), weights=WEIGHTS), Message)  # type: ignore[arg-type]
        other = {"instance": OTHER, "incarnation": 1}
        await system.ask(BALANCER, InstanceUp(**OTHER_UP), Message)  # type: ignore[arg-type]
        await system.ask(BALANCER, InstanceServes(**other, version=1, root=WEIGHTS.root), Message)  # type: ignore[arg-type]
        asks = [
            asyncio.create_task(
                registered(system, instance, what)
                if isinstance(what, dict)
                else system.ask(to, lived(what, instance), Message)
            )
            for to, what in sent
        ]
        for _ in range(2):  # their consequences too
            await alive(system)
            await asyncio.sleep(0.002)
        for ask in asks:
            ask.cancel()
        answers = await asyncio.gather(*asks, return_exceptions=True)
        system.kill(MANAGER)
        system.spawn(MANAGER, lambda: RolloutManager(ManagerSettings.of(Config())))
        await alive(system)
        return list(answers)


def lived(message: Message, instance: Address) -> Message:
    """The message with the true incarnation in place of 1, which is known only once the instance lives."""
    if isinstance(message, Serving | CannotTake) and message.incarnation == 1:
        return structs.replace(message, incarnation=instance.incarnation)
    return message


async def registered(system: TestSystem, worker: Address, odd: Mapping[str, object]) -> Message:
    good = {"kind": "preemptible", "slots": 2, "received": 0}
    register = RegisterInstance(instance=INSTANCE, worker=worker, **{**good, **odd})  # type: ignore[arg-type]
    return await system.ask(MANAGER, register, Message)


async def alive(system: TestSystem) -> None:
    before = [system.system.cell(name) for name in (MANAGER, BALANCER)]
    await system.ask(MANAGER, RolloutStatus(), RolloutFigures, deadline_s=60.0)
    await system.ask(BALANCER, Paces(), PacesAre, deadline_s=60.0)
    async with asyncio.timeout(60.0):  # the timers of the process still work
        await asyncio.sleep(0.001)
    assert [system.system.cell(name) for name in (MANAGER, BALANCER)] == before
    manager = before[0]
    assert manager is not None
    assert isinstance(manager.actor, RolloutManager)
    assert manager.actor._state.check() == []


def submit(**odd: object) -> tuple[str, Message]:
    batch = BatchSubmitted(**{**SUBMITTED, "batch": "step-2", **odd})  # type: ignore[arg-type]
    return MANAGER, SubmitBatch(batch=batch, weights=WEIGHTS)


FOUND: list[tuple[str, Message | dict[str, object]]] = [
    submit(over_sampling=math.nan),
    submit(over_sampling=0.0),
    submit(wanted=-1),
    (MANAGER, Withdraw(instance=INSTANCE, grace_s=math.nan)),
    (MANAGER, Withdraw(instance=INSTANCE, grace_s=-1e300)),
    (MANAGER, {"kind": "gold"}),
    (
        BALANCER,
        LoadChanged(changes=[LoadChange(instance=OTHER, incarnation=1, ended_executing=2**63 - 1)]),
    ),
]
"""Messages that once ended a component, or blocked its process, before they were refused."""
CLOSED: list[tuple[str, Message | dict[str, object]]] = [
    (MANAGER, Generate(**GENERATE)),  # type: ignore[arg-type]
    (MANAGER, ReleaseBatch(batch="step-1")),
    (MANAGER, ReleaseBatch(batch="generate-a")),
]
"""The batch of a request is closed while the journal commits its begin, which once ended the manager."""
UNTIMED: list[tuple[str, Message | dict[str, object]]] = [
    (MANAGER, Generate(**GENERATE, min_version=9, wait_s=math.nan)),  # type: ignore[arg-type]
    (MANAGER, Generate(**GENERATE, temperature=math.nan)),  # type: ignore[arg-type]
    submit(temperature=math.nan),
    *(
        (MANAGER, TakeGroups(batch="step-1", taker=1, have=[], min_groups=9, wait_s=wait_s))
        for wait_s in (math.nan, -math.inf, -1.0)
    ),
]


@settings(max_examples=25)
@given(sequences)
@example(FOUND)
@example(CLOSED)
def test_no_message_ends_the_manager_or_the_balancer(
    sent: list[tuple[str, Message | dict[str, object]]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        answers = asyncio.run(send_all(Path(directory), sent))
    assert not [answer for answer in answers if isinstance(answer, Crashed | Unreachable)]


def test_non_numeric_wait_or_temperature_is_refused(tmp_path: Path) -> None:
    answers = asyncio.run(send_all(tmp_path, UNTIMED))
    assert [type(answer) for answer in answers] == [Refused] * len(UNTIMED)


def test_repeated_and_impossible_groups_do_not_count(tmp_path: Path) -> None:
    have = [0, 0, 0, -1, 2**62, *range(3, 5000)]
    take = TakeGroups(batch="step-1", taker=1, have=have, min_groups=1, wait_s=1.0)
    (answer,) = asyncio.run(send_all(tmp_path, [(MANAGER, take)]))
    assert isinstance(answer, Groups)
    assert ([group.group for group in answer.groups], answer.remaining) == ([1], 0)
