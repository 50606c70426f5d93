"""Fuzzes every decoder with atheris.

Usage: `python -m gleaner.chaos.fuzz [--seconds S] [--target NAME] [--corpus FOLDER]`. Guided by the coverage
of our own code; each target runs in a process of its own for its share of the time. A target is broken beyond
1 GiB of memory or 5 s for one input. An input that breaks a target is written into the corpus, which
`tests/chaos/test_chaos_fuzz.py` replays; inputs that cover more code are kept there too, within bounds. Needs
the extra `fuzz` (atheris).
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from gleaner.chaos.fuzz import corpus

CORPUS = Path(__file__).resolve().parents[2] / "tests" / "corpus"
RSS_LIMIT_MB = 1024
ALLOCATION_LIMIT_MB = 64
"""One allocation may not be larger: twice what the largest legal frame (16 MiB) takes, and some."""
INPUT_TIMEOUT_S = 5
FINDS = ("crash-", "oom-", "timeout-", "leak-")
DEFAULT_SECONDS = 60.0


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 when a target was broken."""
    parser = argparse.ArgumentParser(prog="python -m gleaner.chaos.fuzz", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=DEFAULT_SECONDS, help="seconds for all targets together"
    )
    parser.add_argument("--target", help="only this target")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        chosen = [it for it in corpus.targets(Path(scratch)) if args.target in (None, it.name)]
        if not chosen:
            parser.error(f"no target {args.target}; there are {', '.join(_names())}")
        broken = 0
        for target in chosen:
            share_s = max(1, round(args.seconds / len(chosen)))
            work = Path(scratch) / "corpora" / target.name
            _prepare(work, [*target.seeds(), *corpus.inputs(args.corpus, target.name)])
            seen = set(work.iterdir())
            ran = subprocess.run(
                _command(target.name, work, share_s), capture_output=True, text=True, check=False
            )
            finds = [path for path in work.iterdir() if path.name.startswith(FINDS)]
            for find in finds:
                path = corpus.keep(args.corpus, target.name, find.read_bytes(), find=True)
                print(f"BROKEN {target.name}: {path}")
            if ran.returncode != 0 and not finds:
                print(f"BROKEN {target.name}: {ran.stderr[-2000:]}")
            broken += ran.returncode != 0
            new = sorted(set(work.iterdir()) - seen - set(finds), key=lambda path: path.stat().st_size)
            kept = [corpus.keep(args.corpus, target.name, path.read_bytes(), find=False) for path in new]
            print(f"{target.name}: {share_s} s, {_runs(ran.stderr)} inputs, {sum(map(bool, kept))} kept")
    return 1 if broken else 0


def _names() -> list[str]:
    with tempfile.TemporaryDirectory() as scratch:
        return [target.name for target in corpus.targets(Path(scratch))]


def _prepare(work: Path, inputs: list[bytes]) -> None:
    work.mkdir(parents=True)
    for number, data in enumerate(inputs):
        (work / f"{number:04}").write_bytes(data)


def _command(target: str, work: Path, seconds: int) -> list[str]:
    options = [
        f"-max_total_time={seconds}",
        f"-rss_limit_mb={RSS_LIMIT_MB}",
        f"-malloc_limit_mb={ALLOCATION_LIMIT_MB}",
        f"-timeout={INPUT_TIMEOUT_S}",
        f"-artifact_prefix={work}/",
        "-print_final_stats=1",
        "-max_len=65536",
    ]
    return [sys.executable, "-m", "gleaner.chaos.fuzz.guided", target, str(work), *options]


def _runs(output: str) -> str:
    lines = [line for line in output.splitlines() if line.startswith("stat::number_of_executed_units:")]
    return lines[-1].rpartition(" ")[2] if lines else "?"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
