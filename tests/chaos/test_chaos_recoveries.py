"""Recovery counts: taken from real events, and kept when a process dies."""

from gleaner.actors.cluster.state_manager import Rewound
from gleaner.actors.protocol.cluster import Inventory, NodeHello, NodeSeen
from gleaner.actors.protocol.instances import Dispatch, Registered, RegisterInstance, Work
from gleaner.actors.protocol.rollout import TakeGroups
from gleaner.chaos.coverage import PATHS
from gleaner.chaos.invariants.facts import Committed, MessagePassed
from gleaner.chaos.recoveries import DISKS, FIGURES, RECOVERIES, Recoveries
from gleaner.supervisor import Address, Message
from gleaner.supervisor.system_messages import ActorState, LinkFigures, ProcessVitals, SystemState


def state(
    *, resent: int = 0, again: int = 0, restarts: int = 0, twice: int = 0, incarnation: int = 1
) -> SystemState:
    actor = ActorState(
        name="rollout/manager", incarnation=incarnation, state="running", mailbox=0, handled=0, dropped=0,
        restarts=restarts, last_failure="", strategy="rest_for_one",
        figures={"frames_twice": twice, "tokens": 9},
    )  # fmt: skip
    vitals = ProcessVitals(
        now_s=1.0, lag_s=0.0, waits=0, oldest_wait_s=0.0, ask_counts=[], ask_sum_s=0.0,
        recoveries={"ask sent again": again},
    )  # fmt: skip
    links = LinkFigures(states={}, unacked=0, waiting=0, totals={"resent": resent, "sent": 100})
    return SystemState(
        node="head", process="rollout", pid=1, endpoint="", actors=[actor], refused={}, dead_letters={},
        vitals=vitals, links=links,
    )  # fmt: skip


def received(message: Message, direction: str = "in") -> MessagePassed:
    return MessagePassed(1.0, "head/rollout", direction, "ask", "a", "b", message)


def test_last_reading_per_life_counts_and_lives_add_up() -> None:
    found = Recoveries()
    found.shown("head/rollout#1", state(resent=2, again=1, restarts=1, twice=3))
    found.shown("head/rollout#1", state(resent=5, again=1, restarts=1, twice=4))
    found.shown(
        "head/rollout#1", state(resent=5, restarts=2, twice=1, incarnation=2)
    )  # the actor was restarted
    found.shown("head/rollout#2", state(resent=1))
    found.lost("head/rollout#1", 7)
    assert found.counts() == {
        "asks.resent": 1,
        "links.lost": 7,
        "links.resent": 6,
        "restarts.rest_for_one": 2,
        "streams.duplicates": 5,
    }


def hello(width: int, agent: int = 1) -> MessagePassed:
    address = Address(name="spot-1/agent", endpoint="", incarnation=agent)
    inventory = Inventory(hostname="spot-1", cores=1, memory_bytes=1, gpus=())
    return received(NodeHello("spot-1", "preemptible", address, inventory, width=width), "out")


def registration(engine: int) -> MessagePassed:
    worker = Address(name="spot-1/engine", endpoint="", incarnation=engine)
    message = RegisterInstance("spot-1/engine", worker, "preemptible", slots=8, received=0)
    return MessagePassed(1.0, "spot-1/engine", "out", "ask", "spot-1/engine", "rollout/manager", message)


def test_relaunch_counts_once_when_the_engine_of_another_width_registers() -> None:
    found = Recoveries()
    for fact in (hello(0), hello(2), registration(1), hello(1), registration(1), hello(1)):
        found.message_passed(fact)
    assert found.counts() == {}, "the engine of the other width is not there yet"
    for fact in (registration(2), registration(2), hello(1), registration(3)):
        found.message_passed(fact)
    assert found.counts() == {"engines.relaunched": 1}


def test_relaunch_counts_for_no_engine_that_another_node_agent_started() -> None:
    found = Recoveries()
    for fact in (hello(2), registration(1), hello(0, agent=2), hello(1, agent=2), registration(2)):
        found.message_passed(fact)
    assert found.counts() == {}


def test_messages_and_commits_show_moves_resumes_and_rewinds() -> None:
    found = Recoveries()
    work = [
        Work(ticket=n, prompt=b"", prefix=b"x" * n, seed=1, max_new_tokens=1, temperature=1.0) for n in (0, 4)
    ]
    found.message_passed(received(Dispatch(epoch="", version=1, work=work), "out"))
    found.message_passed(received(Dispatch(epoch="", version=1, work=work), "in"))
    for taker in (1, 1, 2, 2):
        found.message_passed(
            received(TakeGroups(batch="step-3", taker=taker, have=[], min_groups=1, wait_s=1.0))
        )
    found.message_passed(received(NodeSeen(node="spot-1", role="preemptible", event="drained"), "out"))
    found.committed(Committed(1.0, "reserved-1", "training/state", 1, (Rewound(step=2),)))
    for incarnation, epoch in ((7, "1.1"), (7, "1.1"), (7, "2.1"), (8, "2.2")):
        worker = Address(name="spot-1/engine", endpoint="", incarnation=incarnation)
        register = RegisterInstance(
            instance="spot-1/engine", worker=worker, kind="preemptible", slots=8, received=0
        )
        found.message_passed(received(register, "out"))
        registered = Registered(manager=worker, epoch=epoch, stream_endpoint="", stream_key="")
        found.message_passed(received(registered, "in"))
    found.gave_up()
    found.disks({"tail repaired": 2, "something else": 9})
    assert found.counts() == {
        "hosts.drained": 1,
        "journals.repaired": 2,
        "requests.migrated_tokens": 1,
        "restarts.gave_up": 1,
        "steps.resumed": 1,
        "steps.rewound": 1,
        "workers.registered_again": 1,
    }


def test_every_count_that_is_read_shows_some_path() -> None:
    shown = {name for path in PATHS for name in path.counts}
    assert set(FIGURES.values()) | set(RECOVERIES.values()) | set(DISKS.values()) <= shown
