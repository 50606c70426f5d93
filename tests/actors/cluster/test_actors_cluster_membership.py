"""Members: each joined, left or killed host is reported once."""

from gleaner.actors.cluster.membership import Members
from gleaner.actors.protocol.cluster import Inventory, NodeHello, NodeSeen
from gleaner.supervisor import Address

INVENTORY = Inventory(hostname="h", cores=1, memory_bytes=1)


def hello(
    node: str = "spot", life: int = 1, port: int = 1, state: str = "up", role: str = "preemptible"
) -> NodeHello:
    agent = Address(name=f"{node}/agent", endpoint=f"tcp://h:{port}", incarnation=life)
    return NodeHello(node=node, role=role, agent=agent, inventory=INVENTORY, state=state)


def events(seen: list[NodeSeen]) -> list[str]:
    return [event.event for event in seen]


def test_host_joins_once_and_dies_once() -> None:
    members = Members()
    assert events(members.hello(hello(), 0.0)) == ["joined"]
    assert events(members.hello(hello(), 0.5)) == []
    assert events(members.ended("spot/agent", 1, "link down")) == ["killed"]
    assert events(members.ended("spot/agent", 1, "silent for 3.0 s")) == []
    assert events(members.silent(100.0, 5.0)) == []


def test_repeated_goodbye_is_not_a_death() -> None:
    members = Members()
    members.hello(hello(), 0.0)
    assert events(members.hello(hello(state="draining"), 0.5)) == []
    assert events(members.hello(hello(state="leaving"), 1.0)) == ["left"]
    assert events(members.hello(hello(state="leaving"), 1.5)) == []
    assert events(members.ended("spot/agent", 1, "link down")) == []


def test_agent_restart_in_living_process_is_no_event() -> None:
    members = Members()
    members.hello(hello(), 0.0)
    assert events(members.ended("spot/agent", 1, "crashed: KeyError")) == []
    assert events(members.hello(hello(life=2), 0.5)) == []
    assert events(members.silent(1.0, 5.0)) == []


def test_crashed_agent_that_stays_away_is_killed() -> None:
    members = Members()
    members.hello(hello(), 0.0)
    members.ended("spot/agent", 1, "crashed: KeyError")
    assert events(members.silent(5.1, 5.0)) == ["killed"]


def test_early_return_is_reported_as_killed_and_joined() -> None:
    members = Members()
    members.hello(hello(), 0.0)
    assert events(members.hello(hello(life=2, port=2), 0.2)) == ["killed", "joined"]


def test_late_hello_of_an_earlier_life_changes_nothing() -> None:
    members = Members()
    members.hello(hello(life=2, port=2), 0.0)
    assert events(members.hello(hello(life=1, state="leaving"), 0.1)) == []
    assert members.count("preemptible") == 1


def test_host_of_the_head_is_never_reported() -> None:
    members = Members()
    assert members.hello(hello(node="head", role="head"), 0.0) == []
    assert members.silent(100.0, 5.0) == []
