"""Growth of the reward tier: what is left behind by many items, of which a tenth are hostile.

    python -m bench.reward.growth --items 5000       some minutes
    python -m bench.reward.growth                    100,000 items; hours

Proxy, reward host and workers of `bench.reward.tier`. Of each ten programs nine are right; the tenth never
ends, takes all memory, forks without end, fills its folder or floods its output, in turn. After a tenth of
the items, when everything is loaded and has been used, and at the end it counts the memory, descriptors,
processes and temporary files of the tier.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from bench.reward.tier import tier
from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import ScoreText, Verdict
from gleaner.actors.reward.entries import Entry
from gleaner.configs.load import from_tree

OPEN = 48
SUM = "```python\nprint(2 * int(input()))\n```"
HOSTILE = (
    "while True: pass",
    "kept = [bytearray(2**22) for _ in range(10000)]",
    "import os\nwhile True: os.fork()",
    "n = 0\nwhile True:\n    open(f'f{n}', 'wb').write(bytes(2**20)); n += 1",
    "while True: print('x' * 4096)",
)
ALLOWED = 0.05


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What the tier has. memory_mib: of all its processes."""

    memory_mib: float
    descriptors: int
    processes: int
    temporary_files: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The result. statuses: of the verdicts, by status."""

    items: int
    wall_s: float
    before: Use
    after: Use
    statuses: dict[str, int]

    @property
    def grown(self) -> list[str]:
        """What is more than allowed at the end."""
        pairs = zip(msgspec.structs.astuple(self.before), msgspec.structs.astuple(self.after), strict=True)
        names = Use.__struct_fields__
        return [name for name, (was, now) in zip(names, pairs, strict=True) if now > was * (1 + ALLOWED)]


def use() -> Use:
    """Of this process and all below it."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    left = list(Path(tempfile.gettempdir()).iterdir())  # a folder of this measurement's own
    return Use(
        memory_mib=sum(one.memory_info().rss for one in processes) / 2**20,
        descriptors=sum(one.num_fds() for one in processes),
        processes=len(processes),
        temporary_files=len(left),
    )


async def measured(items: int) -> Found:
    """Score so many."""
    task = {"name": "task", "data": "none.jsonl", "verifier": "code", "params": {"deadline_s": 0.3}}
    config = from_tree({"task": [task], "reward": {"deadline_s": 1.0}}, "bench")
    statuses: Counter[str] = Counter()

    async with tier(config) as near:
        room = asyncio.Semaphore(OPEN)

        async def score(number: int) -> None:
            entry = Entry(question="?", tests=({"input": f"{number}\n", "output": f"{2 * number}"},))
            hostile = HOSTILE[number // 10 % len(HOSTILE)]
            ask = ScoreText(
                request=f"r{number}",
                task="task",
                entry=msgspec.json.encode(entry),
                response=f"```python\n{hostile}\n```" if number % 10 == 9 else SUM,
                batch=f"b{number // 1000}",
            )
            async with room:
                verdict = await near.ask(REWARD, ask, Verdict, deadline_s=600.0)
            statuses[verdict.status] += 1
            if (verdict.score == 1.0) != (number % 10 != 9):
                raise SystemExit(f"item {number} has {verdict.status}, {verdict.score}: {verdict.detail}")

        began_s = time.perf_counter()
        await asyncio.gather(*(score(number) for number in range(items // 10)))
        before = use()
        for first in range(items // 10, items, 1000):
            await asyncio.gather(*(score(number) for number in range(first, min(first + 1000, items))))
        after = use()
        return Found(
            items=items,
            wall_s=time.perf_counter() - began_s,
            before=before,
            after=after,
            statuses=dict(statuses),
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 1 if something grew by more than is allowed."""
    parser = argparse.ArgumentParser(prog="python -m bench.reward.growth", description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    if args.items < 100:
        parser.error(f"--items {args.items}: expected 100 or more")
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        os.chmod(folder, 0o711)  # programs have users of their own
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        found = asyncio.run(measured(args.items))
        tempfile.tempdir = None
    if args.json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(found)) + "\n")
    else:
        sys.stdout.write(f"{found.items} items in {found.wall_s:.0f} s: {found.statuses}\n")
        for name in Use.__struct_fields__:
            was, now = getattr(found.before, name), getattr(found.after, name)
            sys.stdout.write(f"{name:16} {was:9.1f} after a tenth, {now:9.1f} at the end\n")
        sys.stdout.write(f"grown by more than {ALLOWED:.0%}: {', '.join(found.grown) or 'nothing'}\n")
    return int(bool(found.grown))


if __name__ == "__main__":
    sys.exit(main())
