"""`python -m bench.gateway [--real-python PATH --model DIR] [--json FILE]`: see the package."""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console

from bench.gateway import fronts
from bench.gateway.page import table, write
from bench.runtime.harness import ENVIRONMENTS

TOGETHER = (1, 16, 64)
FAKE_TOKENS, REAL_TOKENS = 128, 64
FAKE_STEP_MS = 20.0
PER_STREAM = 3  # requests of each stream, one behind the other
LIMIT_S = 300.0
KILL_AFTER = 0.4  # of the time that the same load took undisturbed


@dataclass(frozen=True, slots=True)
class Figures:
    """One load through one front. lost: requests that ended in an error or without their last token."""

    servers: str
    front: str
    together: int
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    cpu_s_per_m: float
    lost: int
    killed: bool = False


def measure(servers: str, name: str, front: fronts.Front, together: int, tokens: int) -> Figures:
    """Put the load on."""
    before_s = front.cpu_s()
    requests = PER_STREAM * together
    seen = fronts.put_load(front.url, requests=requests, together=together, tokens=tokens, limit_s=LIMIT_S)
    return figures(servers, name, together, seen, front.cpu_s() - before_s, killed=False)


def figures(
    servers: str, name: str, together: int, seen: dict[str, object], cpu_s: float, *, killed: bool
) -> Figures:
    """What a client saw, as figures."""
    ttft_s, errors = seen["ttft_s"], seen["errors"]
    count, seconds, broken = seen["tokens"], seen["seconds"], seen["broken"]
    assert isinstance(ttft_s, list)
    assert isinstance(errors, list)
    assert isinstance(count, int)
    assert isinstance(seconds, float)
    assert isinstance(broken, int)
    ordered = sorted(ttft_s) or [float("nan")]
    return Figures(
        servers,
        name,
        together,
        tokens_per_s=count / seconds,
        ttft_p50_s=statistics.median(ordered),
        ttft_p99_s=ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        cpu_s_per_m=cpu_s / count * 1e6 if count else float("nan"),
        lost=len(errors) + broken,
        killed=killed,
    )


def with_a_death(
    servers: str, front: fronts.Front, victim: psutil.Process, together: int, tokens: int, after_s: float
) -> Figures:
    """The same load, and one of the servers is killed in its middle."""
    timer = threading.Timer(after_s, fronts.kill, [victim])
    before_s = front.cpu_s()
    timer.start()
    try:
        requests = PER_STREAM * together
        seen = fronts.put_load(
            front.url, requests=requests, together=together, tokens=tokens, limit_s=LIMIT_S
        )
    finally:
        timer.cancel()
    return figures(servers, front.name, together, seen, front.cpu_s() - before_s, killed=True)


def all_of(router: Path, real: Path | None, model: Path | None, scratch: Path) -> list[Figures]:
    """Both fronts in front of the same servers, one after the other."""
    found: list[Figures] = []
    say = Console(stderr=True).print
    kinds: list[tuple[str, int]] = [("2 fake servers", FAKE_TOKENS)]
    if real is not None and model is not None:
        kinds.append(("2 SGLang servers", REAL_TOKENS))
    for servers, tokens in kinds:
        for name in (fronts.OURS, fronts.ROUTER):
            if servers == "2 fake servers":
                running = fronts.fake_servers(2, FAKE_STEP_MS, FAKE_TOKENS, scratch / "fake.log")
            else:
                assert real is not None
                assert model is not None
                running = fronts.real_servers(real, model, 2, scratch / "real.log")
            with running as behind, fronts.front(name, router, [url for url, _ in behind], scratch) as front:
                for together in TOGETHER:
                    say(f"{servers}, {name}, {together} streams")
                    found.append(measure(servers, name, front, together, tokens))
                took_s = PER_STREAM * TOGETHER[-1] * tokens / found[-1].tokens_per_s
                say(f"{servers}, {name}, {TOGETHER[-1]} streams, a server is killed")
                found.append(
                    with_a_death(servers, front, behind[0][1], TOGETHER[-1], tokens, KILL_AFTER * took_s)
                )
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--real-python", type=Path, metavar="PATH", help="of an environment with SGLang")
    parser.add_argument("--model", type=Path, metavar="DIR", help="that the real servers serve")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--write-docs", action="store_true", help="renew the section of docs/benchmarks.md")
    args = parser.parse_args(argv)
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
