"""`python -m bench.gateway [--real-python PATH --model DIR] [--json FILE]`.

See the package.
"""

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import psutil
from rich.console import Console

from bench.gateway import fronts
from bench.gateway.figures import Figures, figures
from bench.gateway.page import table, write
from bench.runtime.harness import ENVIRONMENTS

TOGETHER = (1, 16, 64)
FAKE_TOKENS, REAL_TOKENS = 128, 64
FAKE_STEP_MS = 20.0
PER_STREAM = 3  # requests of each stream, one after the other
LIMIT_S = 300.0
KILL_AFTER = 0.4  # fraction of the time of the same load without a death


def load(servers: str, front: fronts.Front, together: int, tokens: int) -> Figures:
    """Run the load."""
    return _load(servers, front, together, tokens, killed=False)


def load_with_a_death(
    servers: str, front: fronts.Front, victim: psutil.Process, together: int, tokens: int, after_s: float
) -> Figures:
    """The same load, with one of the servers killed in its middle."""
    timer = threading.Timer(after_s, fronts.kill, [victim])
    timer.start()
    try:
        return _load(servers, front, together, tokens, killed=True)
    finally:
        timer.cancel()


def _load(servers: str, front: fronts.Front, together: int, tokens: int, *, killed: bool) -> Figures:
    before_s = front.cpu_s()
    seen = fronts.put_load(
        front.url, requests=PER_STREAM * together, together=together, tokens=tokens, limit_s=LIMIT_S
    )
    return figures(servers, front.name, together, seen, front.cpu_s() - before_s, killed=killed)


def all_of(router: Path, real: Path | None, model: Path | None, scratch: Path) -> list[Figures]:
    """Both fronts in front of the same servers, one after the other."""
    found: list[Figures] = []
    say = Console(stderr=True).print
    kinds: list[tuple[str, int, Callable[[], AbstractContextManager[fronts.Servers]]]] = [
        (
            "2 fake servers",
            FAKE_TOKENS,
            lambda: fronts.fake_servers(3, FAKE_STEP_MS, FAKE_TOKENS, scratch / "fake.log"),
        )
    ]
    if real is not None and model is not None:
        start = partial(fronts.real_servers, real.absolute(), model.absolute(), 3, scratch / "real.log")
        kinds.append(("2 SGLang servers", REAL_TOKENS, start))
    for servers, tokens, running in kinds:
        with running() as started:
            for number, name in enumerate((fronts.OURS, fronts.ROUTER)):
                behind = started[number : number + 2]  # the killed server is missing at the next front
                with fronts.front(name, router, [url for url, _ in behind], scratch) as front:
                    for together in TOGETHER:
                        say(f"{servers}, {name}, {together} streams")
                        found.append(load(servers, front, together, tokens))
                    took_s = PER_STREAM * TOGETHER[-1] * tokens / found[-1].tokens_per_s
                    say(f"{servers}, {name}, {TOGETHER[-1]} streams, a server is killed")
                    victim, after_s = behind[0][1], KILL_AFTER * took_s
                    found.append(load_with_a_death(servers, front, victim, TOGETHER[-1], tokens, after_s))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--real-python", type=Path, metavar="PATH", help="of an environment with SGLang")
    parser.add_argument("--model", type=Path, metavar="DIR", help="that the real servers serve")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--write-docs", action="store_true", help="renew the section of docs/benchmarks.md")
    args = parser.parse_args(argv)
    if (args.real_python is None) != (args.model is None):
        parser.error("--real-python and --model go together")
    router = ENVIRONMENTS / "router" / "bin" / "python"
    if not router.exists():
        parser.error(f"{router} is not there: make bench-peers")
    with tempfile.TemporaryDirectory() as scratch:
        found = all_of(router, args.real_python, args.model, Path(scratch))
    Console(width=120).print(table(found))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    if args.write_docs:
        write(found, time.strftime("%Y-%m-%d"))


if __name__ == "__main__":
    main()
