"""The node agent notifies the transfer agent of its host's state, in spite of lost messages."""

from gleaner.actors.protocol.cluster import CloudNotice, Inventory, JobSpec, NodeHello, NodeSeen, NodeWork
from gleaner.actors.protocol.instances import NewWork, Withdraw, Withdrawn
from gleaner.actors.protocol.weights import HostLeaves
from gleaner.nodeagent.agent import NodeAgent
from gleaner.nodeagent.departure import AGAIN_S, Orders
from gleaner.supervisor import AskTimeout, Done, Message
from gleaner.supervisor.actor_test_kit import ActorTestKit

INVENTORY = Inventory(hostname="h", cores=1, memory_bytes=1)
JOB = JobSpec(run_id="job", run_dir="/r", model_dir="/m", config="")


class OneJob:
    job: JobSpec | None = JOB
    width = 0
    on_trial = False

    async def run(self, job: JobSpec | None, done: str = "", width: int = 0) -> None:
        pass

    def names(self) -> list[str]:
        return []


class Transfer:
    """Accepts or loses what it is sent."""

    def __init__(self) -> None:
        self.loses = False
        self.accepted: list[bool] = []
        self.lost: list[bool] = []

    def answer(self, message: HostLeaves) -> Message:
        if self.loses:
            self.lost.append(message.leaves)
            raise AskTimeout("no actor holds the name 'spot-1/transfer'")
        self.accepted.append(message.leaves)
        return Done()


def agent() -> NodeAgent:
    return NodeAgent("preemptible", INVENTORY, OneJob(), Orders(), lambda _code, _why: None, print)  # type: ignore[arg-type]


def answer_all(stage: ActorTestKit, transfer: Transfer) -> None:
    stage.answer(NodeHello, NodeWork(job=JOB))
    stage.answer(NodeSeen, Done())
    stage.answer(NewWork, Done())
    stage.answer(Withdraw, Withdrawn(handed_over=0))
    stage.answer(HostLeaves, transfer.answer)


def test_transfer_agent_learns_that_its_host_stays_when_the_first_message_is_lost() -> None:
    transfer = Transfer()
    with ActorTestKit(agent) as stage:
        answer_all(stage, transfer)
        stage.ask(CloudNotice(kind="notice", deadline_s=120.0, source="aws"), Done)
        stage.advance(1.0)
        assert transfer.accepted == [True]
        transfer.loses = True
        stage.ask(CloudNotice(kind="none", deadline_s=0.0, source="aws"), Done)
        stage.advance(3 * AGAIN_S)
        assert len(transfer.lost) >= 2
        assert not any(transfer.lost)
        transfer.loses = False
        stage.advance(2 * AGAIN_S)
        assert transfer.accepted == [True, False]
        stage.advance(60.0)
        assert transfer.accepted == [True, False], "an accepted one is not repeated"


def test_transfer_agent_gets_only_the_newest_state_after_lost_messages() -> None:
    transfer = Transfer()
    with ActorTestKit(agent) as stage:
        answer_all(stage, transfer)
        transfer.loses = True
        stage.ask(CloudNotice(kind="notice", deadline_s=120.0, source="aws"), Done)
        stage.advance(1.0)
        stage.ask(CloudNotice(kind="none", deadline_s=0.0, source="aws"), Done)
        transfer.loses = False
        stage.advance(5 * AGAIN_S)
        assert transfer.accepted == [False]
