"""A host whose key the head does not know: it prints the remedy once, and asks ever less often."""

import pytest

from gleaner.actors.protocol.cluster import Inventory, NodeHello, NodeWork
from gleaner.nodeagent.agent import MAX_STRANGER_S, NodeAgent
from gleaner.nodeagent.departure import Orders
from gleaner.supervisor import AskTimeout, Message, NotAdmitted
from gleaner.supervisor.actor_test_kit import ActorTestKit

INVENTORY = Inventory(hostname="h", cores=1, memory_bytes=1)
REFUSED = NotAdmitted("the process at tcp://10.0.0.1:7700 does not admit us")


class NoChildren:
    job = None
    width = 0
    on_trial = False

    def names(self) -> list[str]:
        return []


class Head:
    """Refuses or admits hosts, and counts their requests."""

    def __init__(self, problem: Exception | None) -> None:
        self.problem = problem
        self.hellos = 0

    def answer(self, _: NodeHello) -> Message:
        self.hellos += 1
        if self.problem is not None:
            raise AskTimeout("no actor holds the name 'cluster/scheduler'") from self.problem
        return NodeWork(job=None, hello_s=1.0)


def test_stranger_asks_less_often_and_prints_one_remedy(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    head = Head(REFUSED)

    def agent() -> NodeAgent:
        return NodeAgent(
            "preemptible", INVENTORY, NoChildren(), Orders(), lambda _code, _why: None, lines.append
        )  # type: ignore[arg-type]

    with ActorTestKit(agent) as stage:
        stage.answer(NodeHello, head.answer)
        stage.advance(3600.0)
        assert 3600 / MAX_STRANGER_S <= head.hellos <= 20 + 2 * 3600 / MAX_STRANGER_S
        what_to_do = "this host has no keys: start it with --keys"
        assert len([line for line in lines if what_to_do in line]) == 1
        assert len([record for record in caplog.records if what_to_do in record.message]) == 1
        assert str(stage.actor.summary()["head"]).startswith("not reached: ")
        head.problem = None
        stage.advance(MAX_STRANGER_S)
        assert stage.actor.summary()["head"] == "connected"
        head.problem, before = AskTimeout("the head is gone"), head.hellos
        stage.advance(60.0)
        assert head.hellos - before > 30, "the host asks an absent head as often as before"
