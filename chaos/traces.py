"""Reader of the availability traces that a campaign names: CSV files and folders.

Owns which files are read, each trace's name, and which names its instances may not have.
`gleaner.configs.trace` defines the format, `availability` uses the traces.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from gleaner.configs import trace
from gleaner.configs.trace import Trace, TraceError
from gleaner.sim.run_setup import refuse_hosts


def read_all(paths: Iterable[str], base: Path) -> dict[str, Trace]:
    """The traces of these files and folders, by their names without `.csv`. base: where a relative path
    begins. Raises TraceError for one that cannot be replayed, and for two of one name."""
    found: dict[str, Trace] = {}
    for path in paths:
        for file in _files(base / Path(path).expanduser()):
            if file.stem in found:
                raise TraceError(
                    f"{file}: another trace is called {file.stem} too ({found[file.stem].name}); rename one"
                )
            found[file.stem] = trace.read(file)
            refuse_hosts(found[file.stem])
    return found


def _files(place: Path) -> Iterator[Path]:
    if not place.is_dir():
        yield place
        return
    files = sorted(place.glob("*.csv"))
    if not files:
        raise TraceError(f"{place}: no *.csv in this folder; name a folder of traces, or one of them")
    yield from files
