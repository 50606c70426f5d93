"""Process of one target under atheris.

Usage: `python -m gleaner.chaos.fuzz.guided TARGET FOLDER OPTION...`. Owns the choice of the code that is
watched for
coverage: our own and the Python parsers that it calls. Watching all imports takes a minute before the first
input. libFuzzer ends the process.
"""

import sys
import tempfile
from pathlib import Path

import atheris

WATCHED = [f"gleaner.{name}" for name in ("transport", "supervisor", "configs", "nodeagent", "chaos")]
WATCHED += [
    "tomllib",
    "csv",
    "gleaner.actors.weights",
    "gleaner.actors.reward.pipe",
    "gleaner.actors.cluster",
    "gleaner.actors.training.history",
]


def main(name: str, work: str, options: list[str]) -> None:
    """Never returns."""
    with atheris.instrument_imports(include=WATCHED):
        from gleaner.chaos.fuzz import corpus
    scratch = tempfile.mkdtemp(dir=Path(work).parent)
    (target,) = [it for it in corpus.targets(Path(scratch)) if it.name == name]

    def one(data: bytes) -> None:
        target.accepts(data)

    for seed in target.seeds():  # loops that are compiled on first use do not count in an input's time
        target.accepts(seed)
    atheris.Setup([sys.argv[0], work, *options], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
