"""Witness: polls every process from inside the cluster, and writes the answers.

Owns the polls, from the host from which jobs are driven, as `rlctl ps` would: `python -m
gleaner.chaos.real.health_recorder`, a line of JSON each time. Whether a process runs can be seen from
outside. Whether it works, is reachable and has no overdue wait cannot. Ends when its input does.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gleaner.actors.names import MANAGER
from gleaner.rlctl.client import Cluster, connect
from gleaner.supervisor import AskFailed
from gleaner.supervisor.process import die_with_parent
from gleaner.supervisor.system_messages import ListWaits, SystemState, WaitsOf

EVERY_S = 0.4
ANSWER_S = 1.5  # a process that answers later does not work
OVERDUE_S = 5.0
"""A wait this long past its deadline was forgotten: deadlines are met within a turn of the loop, and a busy
machine makes that a second or two."""


class HealthRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one round of polls. pids: of every process that answered (`host/kind`). versions: of the
    weights that each engine serves, -1: none. instances: registered with the manager; -1: it did not answer.
    overdue: waits that passed their deadline and were not ended, as texts. trouble: why no process was
    polled."""

    pids: dict[str, int] = {}
    versions: dict[str, int] = {}
    instances: int = -1
    overdue: list[str] = []
    trouble: str = ""


async def testify(cluster: Cluster) -> HealthRecord:
    """One round."""
    try:
        seen = await cluster.processes(ANSWER_S)
        waits = await cluster.ask_everywhere(ListWaits(limit=50), expect=WaitsOf, deadline_s=ANSWER_S)
    except AskFailed as problem:
        return HealthRecord(trouble=str(problem))
    return health_record(seen.states, waits.answers)


def health_record(states: Sequence[SystemState], waits: Sequence[WaitsOf]) -> HealthRecord:
    """The testimony in these answers."""
    actors = {actor.name: actor for state in states for actor in state.actors}
    manager = actors.get(MANAGER)
    return HealthRecord(
        pids={f"{state.node}/{state.process}": state.pid for state in states},
        versions={
            name: int(actor.figures["version"])
            for name, actor in actors.items()
            if name.endswith("/engine") and "version" in actor.figures
        },
        instances=int(manager.figures.get("instances", -1)) if manager is not None else -1,
        overdue=[
            f"{wait.who} waits for {wait.what} on {wait.on or 'no actor'}, {-wait.left_s:.0f} s too long"
            for answer in waits
            for wait in answer.waits
            if wait.left_s < -OVERDUE_S
        ],
    )


async def watch(head: str, head_key: str, keys: Path) -> None:
    """Poll until the input ends."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    async with connect(head, keys, head_key=head_key) as cluster:
        while not ended.is_set():
            line = msgspec.json.encode(await testify(cluster))
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()
            await asyncio.sleep(EVERY_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="gleaner.chaos.real.health_recorder", description="Polls the state of every process."
    )
    parser.add_argument("--head", required=True)
    parser.add_argument("--head-key", required=True, type=Path)
    parser.add_argument("--keys", required=True, type=Path)
    args = parser.parse_args(argv)
    asyncio.run(watch(args.head, args.head_key.read_text().strip(), args.keys))
    return 0


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main())
