"""Fuzzes the port of a live node agent, round after round.

Usage: `python -m gleaner.chaos.socket_fuzz --state-dir DIR [--rounds N] [--seed N]`. Makes every attack of
`socket_attacks` while it asks the agent for its state. Exit code 0 when the agent lived, answered every time,
and released its resources; it prints the result of each round.
"""

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path

import psutil

from gleaner.chaos import socket_attacks
from gleaner.chaos.target_monitor import SPARE_DESCRIPTORS, Verdict, besiege
from gleaner.nodeagent.client import calling
from gleaner.nodeagent.exit_codes import CannotRun
from gleaner.nodeagent.files import AgentFile, find_agent
from gleaner.supervisor import Address
from gleaner.supervisor.system_messages import SYSTEM, Inspect, SystemState

ANSWER_S = 5.0
GROWTH_BYTES = 100 << 20
"""A few messages at the limit of 16 MiB, and what the allocator keeps of them."""
SLOW_CONNECTIONS = 20


async def pelt(agent: AgentFile, seed: int) -> tuple[Verdict, Counter[str]]:
    """One round: the verdict, and the messages that the agent refused in it."""
    address = Address(name=SYSTEM, endpoint=agent.endpoint, public_key=agent.public_key)
    port = int(agent.endpoint.rpartition(":")[2])
    async with calling(agent) as system:

        async def state() -> SystemState:
            return await system.ask(address, Inspect(), deadline_s=ANSWER_S, expect=SystemState)

        async def ask() -> None:
            await state()

        def attack() -> None:
            with socket_attacks.slow([port], SLOW_CONNECTIONS) as speak:
                for one in socket_attacks.ATTACKS:
                    socket_attacks.throw(port, seed, [one])
                    speak()

        before = Counter((await state()).refused)
        verdict = await besiege(psutil.Process(agent.pid), ask, attack)
        return verdict, Counter((await state()).refused) - before


def held_out(verdict: Verdict) -> bool:
    """Whether a process was unharmed."""
    return (
        verdict.alive
        and not verdict.failures
        and verdict.grown_bytes < GROWTH_BYTES
        and verdict.grown_descriptors <= SPARE_DESCRIPTORS
    )


def main(arguments: list[str]) -> int:
    """Exit code: 0, 1 when the agent was harmed, or the node agent's own for one that does not run."""
    parser = argparse.ArgumentParser(prog="python -m gleaner.chaos.socket_fuzz", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    try:
        agent = find_agent(args.state_dir)
    except CannotRun as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.code
    harmed = 0
    for seed in range(args.seed, args.seed + args.rounds):
        verdict, refused = asyncio.run(pelt(agent, seed))
        harmed += not held_out(verdict)
        print(
            f"seed {seed}: {'held out' if held_out(verdict) else 'HARMED'}; {verdict.asks} asks, slowest "
            f"{verdict.slowest_s * 1000:.0f} ms, {len(verdict.failures)} failed {verdict.failures[:3]}; grew "
            f"{verdict.grown_bytes >> 20} MiB and {verdict.grown_descriptors} descriptors; "
            f"refused {dict(refused)}"
        )
    return 1 if harmed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
