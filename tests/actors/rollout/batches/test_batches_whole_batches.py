"""Whole batches: reported when all groups that count are there and no request is anywhere."""

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from rollout_world import frame, submission

from gleaner.actors.names import CONTROLLER
from gleaner.actors.protocol.rollout import BatchesWhole
from gleaner.actors.rollout.batches.whole_batches import WholeBatches
from gleaner.actors.rollout.state.events import (
    BatchReleased,
    Dispatched,
    InstanceGone,
    InstanceJoined,
    Scored,
)
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.rollout.state.tickets import FINISHED, FIRST
from gleaner.supervisor import Context, Message


class Reports:
    """The reports of a manager with this state, whose requests are driven by hand."""

    def __init__(self, *, wanted: bool = True) -> None:
        self.sent: list[tuple[str, ...]] = []
        self.state = RolloutState()
        context = SimpleNamespace(tell=self._tell, background=self._run)
        self._batches = WholeBatches(cast("Context", context), self.state, wanted=wanted)
        self._seq = 0
        self.state.apply(InstanceJoined(instance="spot", incarnation=4))

    async def _tell(self, to: str, message: Message) -> None:
        assert to == CONTROLLER
        assert isinstance(message, BatchesWhole)
        self.sent.append(message.batches)

    def _run(self, work: Coroutine[object, object, None], what: str) -> None:
        with pytest.raises(StopIteration):
            work.send(None)

    def look(self) -> list[tuple[str, ...]]:
        self._batches.look()
        return self.sent

    def dispatch(self, batch: str) -> None:
        names = tuple(log.id for log in self.state.log.batches[batch].requests())
        self.tickets = tuple(range(self._next(), self._next() + len(names)))
        event = Dispatched(instance="spot", incarnation=4, version=1, tickets=self.tickets, requests=names)
        assert self.state.apply(event).refused == []

    def finish(self) -> None:
        self._seq += 1
        rows = [(ticket, 70, -0.5, FIRST | FINISHED) for ticket in self.tickets]
        assert self.state.apply(frame("spot", 4, self._seq, rows)).refused == []

    def score(self, batch: str, *, but: int = 0) -> None:
        logs = list(self.state.log.batches[batch].requests())
        for log in logs[: len(logs) - but]:
            self.state.apply(Scored(request=log.id, score=0.5))

    def _next(self) -> int:
        return self.state.streams["spot"].next_ticket


def whole(reports: Reports, batch: str) -> None:
    reports.dispatch(batch)
    reports.finish()
    reports.score(batch)


def test_batch_is_reported_once_when_its_last_verdict_is_there() -> None:
    reports = Reports()
    reports.state.apply(submission())
    assert reports.look() == []
    reports.dispatch("step-1")
    reports.finish()
    reports.score("step-1", but=1)
    assert reports.look() == [], "its sample may be generated again"
    reports.score("step-1")
    assert reports.look() == [("step-1",)]
    assert reports.look() == [("step-1",)]


def test_batch_is_not_reported_while_another_one_is_rolled_out() -> None:
    reports = Reports()
    reports.state.apply(submission())
    whole(reports, "step-1")
    reports.state.apply(submission("step-2"))
    assert reports.look() == [], "its requests wait"
    reports.dispatch("step-2")
    assert reports.look() == [], "an instance has its requests"
    reports.finish()
    assert reports.look() == [("step-1",)], "no instance has a request"
    reports.score("step-2")
    assert reports.look() == [("step-1",), ("step-1", "step-2")]


def test_requests_of_an_instance_that_is_gone_wait_and_are_no_idle_time() -> None:
    reports = Reports()
    reports.state.apply(submission())
    whole(reports, "step-1")
    reports.state.apply(submission("step-2"))
    reports.dispatch("step-2")
    reports.state.apply(InstanceGone(instance="spot", incarnation=4, cause="killed"))
    assert reports.look() == []


def test_requests_of_callers_keep_a_batch_from_being_reported() -> None:
    reports = Reports()
    reports.state.apply(submission())
    whole(reports, "step-1")
    reports.state.apply(msgspec.structs.replace(submission("call", groups=1, samples=1), scored=False))
    reports.dispatch("call")
    assert reports.look() == []
    reports.finish()
    assert reports.look() == [("step-1",)]


def test_batch_that_is_rolled_out_again_is_reported_again() -> None:
    reports = Reports()
    for _ in range(2):
        reports.state.apply(submission())
        reports.look()
        whole(reports, "step-1")
        reports.look()
        reports.state.apply(BatchReleased(batch="step-1"))
    assert reports.sent == [("step-1",), ("step-1",)]


def test_nothing_is_reported_when_widths_never_change() -> None:
    reports = Reports(wanted=False)
    reports.state.apply(submission())
    whole(reports, "step-1")
    assert reports.look() == []
