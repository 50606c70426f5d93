"""The cloud: reports the ends of rented hosts to the head's provider."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

from gleaner.sim.cloud import Cloud, CloudHosts
from gleaner.sim.hosts import KILLED, SimProcess
from gleaner.supervisor import ActorSystem, ProcessExit


def test_end_of_a_host_is_kept_when_the_ends_are_taken_before_it_is_delivered() -> None:
    tell: list[Callable[[str, ProcessExit], None]] = []
    due: list[Callable[[], None]] = []

    def call_soon(what: Callable[..., None], *values: object) -> None:
        due.append(lambda: what(*values))

    cloud = cast(Cloud, SimpleNamespace(tell=tell.append))
    head = cast(SimProcess, SimpleNamespace(alive=True, loop=SimpleNamespace(call_soon=call_soon)))
    hosts = CloudHosts(cloud, head, cast(ActorSystem, None))
    tell[0]("spot-1", KILLED)  # while the head is busy
    assert hosts.take_ended() == []
    for call in due:
        call()
    assert hosts.take_ended() == [("spot-1", KILLED)]
    assert hosts.take_ended() == []
