"""`rlctl tree` of a trainer host with several processes, below their supervisors."""

from rich.console import Console

from gleaner.rlctl.commands.tree import trees
from gleaner.supervisor.system_messages import ActorState, SystemState

CHILDREN, GANG = "reserved-1/children", "reserved-1/gang"


def row(
    name: str, parent: str, strategy: str, *, pid: int = 0, restarts: int = 0, last: str = ""
) -> ActorState:
    return ActorState(
        name=name, incarnation=0, state="running", mailbox=0, handled=0, dropped=0, restarts=restarts,
        last_failure=last, parent=parent, pid=pid, strategy=strategy,
    )  # fmt: skip


def process(name: str, pid: int, *actors: ActorState) -> SystemState:
    return SystemState("reserved-1", name, pid, "", list(actors), {}, {})


def test_gang_processes_are_below_their_supervisor() -> None:
    states = [
        process(
            "agent",
            1,
            row("transfer", CHILDREN, "one_for_one", pid=2),
            row(GANG, CHILDREN, "one_for_one"),
            row("rank-1", GANG, "one_for_all", pid=3, restarts=1, last="SIGKILL"),
            row("trainer", GANG, "one_for_all", pid=4, restarts=1),
        ),
        process("rank-1", 3, row("training/rank-1", "rank-1", "one_for_one")),
    ]
    console = Console(width=100)
    with console.capture() as capture:
        for branch in trees(states):
            console.print(branch)
    assert capture.get().splitlines() == [
        "reserved-1  pid 1",
        "└── reserved-1/children  one_for_one",
        "    ├── transfer  pid 2",
        "    └── reserved-1/gang  one_for_all",
        "        ├── rank-1  pid 3  1 restarts, last: SIGKILL",
        "        │   └── rank-1  one_for_one",
        "        │       └── training/rank-1",
        "        └── trainer  pid 4  1 restarts, each with another",
    ]
