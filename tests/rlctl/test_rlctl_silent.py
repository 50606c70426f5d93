"""Unresponsive child processes: their node agents report them."""

from gleaner.nodeagent.cluster_view import _quiet_children
from gleaner.supervisor.system_messages import ActorState, SystemState


def state(node: str, process: str, pid: int, **children: int) -> SystemState:
    rows = [
        ActorState(
            name=name.replace("_", "-"), incarnation=0, state="running", mailbox=0, handled=0, dropped=0,
            restarts=0, last_failure="", pid=child,
        )
        for name, child in children.items()
    ]  # fmt: skip
    return SystemState(
        node=node, process=process, pid=pid, endpoint="", actors=rows, refused={}, dead_letters={}
    )


def test_unresponsive_child_process_is_named_even_if_unregistered() -> None:
    states = [
        state("head", "agent", 1, rollout=2, reserved_1=3, spot_1=4),
        state("head", "rollout", 2),
        state("reserved-1", "agent", 3, trainer=5, transfer=6),
    ]
    assert _quiet_children(states, []) == [
        "head/spot-1 (pid 4)",
        "reserved-1/trainer (pid 5)",
        "reserved-1/transfer (pid 6)",
    ]
    registered = ["spot-1/agent", "reserved-1/transfer"]
    assert _quiet_children(states, registered) == ["reserved-1/trainer (pid 5)"], "no process is named twice"
