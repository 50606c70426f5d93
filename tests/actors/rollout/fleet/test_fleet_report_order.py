"""An instance reports what it serves and withdraws itself; the manager may get the two in another order."""

from gleaner.actors.protocol.instances import Registered, RegisterInstance, Serving, Withdraw, Withdrawn
from gleaner.actors.protocol.rollout import RolloutFigures, RolloutStatus
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.configs.schema import Config
from gleaner.supervisor import Address, Done
from gleaner.supervisor.actor_test_kit import ActorTestKit

NAME = "reserved-1/engine"


def serves(number: int) -> Serving:
    return Serving(instance=NAME, incarnation=4, version=1, root=b"r", number=number)


def withdraws(number: int, incarnation: int = 4) -> Withdraw:
    return Withdraw(instance=NAME, grace_s=0.0, incarnation=incarnation, number=number)


def serving(stage: ActorTestKit) -> int:
    return stage.ask(RolloutStatus(), RolloutFigures).serving_reserved


def manager() -> ActorTestKit:
    return ActorTestKit(lambda: RolloutManager(ManagerSettings.of(Config())))


def register(stage: ActorTestKit) -> None:
    worker = Address(name=NAME, endpoint="tcp://127.0.0.1:1", incarnation=4)
    message = RegisterInstance(instance=NAME, worker=worker, kind="reserved", slots=4, received=0)
    stage.ask(message, Registered)


def test_instance_gets_no_requests_when_its_withdrawal_overtakes_its_report() -> None:
    with manager() as stage:
        register(stage)
        stage.ask(withdraws(2), Withdrawn)
        stage.ask(serves(1), Done)
        assert serving(stage) == 0
        stage.ask(serves(3), Done)
        assert serving(stage) == 1


def test_instance_serves_when_an_earlier_life_of_it_withdrew() -> None:
    with manager() as stage:
        register(stage)
        stage.ask(withdraws(9, incarnation=3), Withdrawn)
        stage.ask(serves(1), Done)
        assert serving(stage) == 1
