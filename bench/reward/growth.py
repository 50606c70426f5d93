"""Growth of the reward tier: what is left behind by many items, of which a tenth are hostile.

    python -m bench.reward.growth --items 5000       some minutes
    python -m bench.reward.growth                    100,000 items; an hour or two

Proxy, reward host and workers of `bench.reward.tier`. Of each ten programs nine are right; the tenth never
ends, takes all memory, forks without end, fills its folder or floods its output, in turn. One in a hundred is
in C: it is compiled, and passed to its run as a blob. After each tenth of the items it counts the memory,
descriptors, processes, temporary files and blobs of the tier. It compares the first count, when everything
is loaded and has been used, with the last.
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
from gleaner.actors.protocol.reward import BatchEnded, ScoreText, Verdict
from gleaner.actors.reward.entries import Entry
from gleaner.configs.load import from_tree

OPEN = 48
SCORERS = 2
"""Workers of the stage of most items, on each of the two hosts."""
PER_BATCH = 1000
SUM = "```python\nprint(2 * int(input()))\n```"
NATIVE = """```c
#include <stdio.h>
volatile char table[100000] = {%d};  /* larger than what travels with an item */
int main(void) { int n; if (scanf("%%d", &n) != 1) return table[0]; printf("%%d\\n", 2 * n); }
```"""
NATIVE_SOURCES = 8
NATIVE_AT, NATIVE_EVERY = 50, 100
TASKS = (
    {"name": "task", "verifier": "code", "params": {"deadline_s": 0.15, "memory_mb": 96}},
    {"name": "native", "verifier": "code", "params": {"language": "c", "compile_s": 5.0, "deadline_s": 1.0}},
)
HOSTILE = (
    "while True: pass",
    "kept = [bytearray(2**22) for _ in range(10000)]",
    "import os\nwhile True: os.fork()",
    "n = 0\nwhile True:\n    open(f'f{n}', 'wb').write(bytes(2**20)); n += 1",
    "while True: print('x' * 4096)",
)
ALLOWED = 0.05


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What the tier has. memory_mib: of all its processes. blobs: files in the folders of blobs."""

    memory_mib: float
    descriptors: int
    processes: int
    temporary_files: int
    blobs: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The result. uses: after each tenth of the items. statuses: of the verdicts, by status. misjudged: right
    programs without their score, and hostile ones with one."""

    items: int
    wall_s: float
    uses: list[Use]
    statuses: dict[str, int]
    misjudged: list[str]

    @property
    def grown(self) -> list[str]:
        """What is more than allowed at the end."""
        first, last = self.uses[0], self.uses[-1]
        pairs = zip(msgspec.structs.astuple(first), msgspec.structs.astuple(last), strict=True)
        names = Use.__struct_fields__
        return [name for name, (was, now) in zip(names, pairs, strict=True) if now > was * (1 + ALLOWED)]


def use() -> Use:
    """Of this process and all below it."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    left = list(Path(tempfile.gettempdir()).rglob("*"))  # a folder of this measurement's own
    blobs = [path for path in left if path.parent.name.startswith("gleaner-blobs-")]
    return Use(
        memory_mib=sum(one.memory_info().rss for one in processes) / 2**20,
        descriptors=sum(one.num_fds() for one in processes),
        processes=len(processes),
        temporary_files=len(left) - len(blobs),
        blobs=len(blobs),
    )


def asked(number: int) -> ScoreText:
    """The item of this number."""
    response, task = SUM, "task"
    if hostile(number):
        response = f"```python\n{HOSTILE[number // 10 % len(HOSTILE)]}\n```"
    elif number % NATIVE_EVERY == NATIVE_AT:
        response, task = NATIVE % (number // NATIVE_EVERY % NATIVE_SOURCES), "native"
    entry = Entry(question="?", tests=({"input": f"{number}\n", "output": f"{2 * number}"},))
    return ScoreText(
        request=f"r{number}",
        task=task,
        entry=msgspec.json.encode(entry),
        response=response,
        batch=f"b{number // PER_BATCH}",
    )


def hostile(number: int) -> bool:
    """Whether the item of this number is."""
    return number % 10 == 9


async def measured(items: int) -> Found:
    """Score so many."""
    tasks = [{"data": "none.jsonl", **task} for task in TASKS]
    reward = {"deadline_s": 6.0, "stages": {"separate": True, "score": {"workers": SCORERS}}}
    config = from_tree({"task": tasks, "reward": reward}, "bench")
    statuses: Counter[str] = Counter()
    uses: list[Use] = []
    misjudged: list[str] = []

    async with tier(config) as near:
        room = asyncio.Semaphore(OPEN)

        async def score(number: int) -> None:
            async with room:
                verdict = await near.ask(REWARD, asked(number), Verdict, deadline_s=600.0)
            statuses[verdict.status] += 1
            if (verdict.score == 1.0) == hostile(number):
                misjudged.append(f"item {number} has {verdict.status}, {verdict.score}: {verdict.detail}")

        began_s = time.perf_counter()
        for tenth in range(10):
            last = items * (tenth + 1) // 10
            for first in range(items * tenth // 10, last, PER_BATCH):
                await asyncio.gather(
                    *(score(number) for number in range(first, min(first + PER_BATCH, last)))
                )
                await near.tell(REWARD, BatchEnded(batch=f"b{first // PER_BATCH}"))
            uses.append(use())
            sys.stderr.write(f"{last} items in {time.perf_counter() - began_s:.0f} s: {uses[-1]}\n")
        return Found(
            items=items,
            wall_s=time.perf_counter() - began_s,
            uses=uses,
            statuses=dict(statuses),
            misjudged=misjudged,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 1 if something grew by more than is allowed, or a score is wrong."""
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
            was, now = getattr(found.uses[0], name), getattr(found.uses[-1], name)
            sys.stdout.write(f"{name:16} {was:9.1f} after a tenth, {now:9.1f} at the end\n")
        for text in found.misjudged:
            sys.stdout.write(f"misjudged: {text}\n")
        sys.stdout.write(f"grown by more than {ALLOWED:.0%}: {', '.join(found.grown) or 'nothing'}\n")
    return int(bool(found.grown or found.misjudged))


if __name__ == "__main__":
    sys.exit(main())
