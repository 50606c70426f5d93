"""A worker numbers what it reports to the manager, in the order of sending."""

from gleaner.actors.engine.worker.served_weights import ServedWeights
from gleaner.actors.protocol.instances import ServeWeights, Serving
from gleaner.actors.protocol.rollout import Weights
from gleaner.actors.protocol.weights import Fetched
from gleaner.configs.schema import Engine
from gleaner.supervisor import Actor, Done, Message, handles
from gleaner.supervisor.actor_test_kit import ActorTestKit

WEIGHTS = Weights(version=1, root=b"r", sources=())


class Worker(Actor):
    async def on_start(self) -> None:
        self.weights = ServedWeights(self.ctx, Engine(), "a", "reserved", (self._stage, self._load))
        self.weights.served = (1, b"r")

    @handles(ServeWeights)
    async def serve(self, message: ServeWeights) -> None:
        self.weights.want(message.weights)

    async def _stage(self, fetched: Fetched) -> None:
        raise AssertionError("it serves them already")

    async def _load(self, fetched: Fetched) -> str:
        raise AssertionError("it serves them already")


def test_withdrawal_has_a_number_between_the_reports_before_and_after_it() -> None:
    numbers: list[int] = []

    def announced(message: Serving) -> Message:
        numbers.append(message.number)
        return Done()

    with ActorTestKit(Worker) as stage:
        stage.answer(Serving, announced)
        worker = stage.actor
        assert isinstance(worker, Worker)
        stage.tell(ServeWeights(weights=WEIGHTS))
        stage.advance(1.0)
        withdrawal = worker.weights.withdrawal(0.0)
        stage.tell(ServeWeights(weights=WEIGHTS))
        stage.advance(1.0)
        before, after = numbers
        assert 0 < before < withdrawal.number < after
        assert withdrawal.incarnation == worker.ctx.incarnation
