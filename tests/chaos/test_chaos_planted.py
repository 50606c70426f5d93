"""Planted bugs, each caught by its named check; the run without it is clean, which is tried every night.

The seed that caught a bug last is tried first (caught.toml). When code moves, a seed may meet other events.
Then a few more seeds may catch the bug before the test fails. `python -m gleaner.chaos.hunt --write` renews
the file. One bug of each check, the one that is caught soonest, shows that it is awake; the other bugs are
tried every night.
"""

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from _pytest.mark import ParameterSet

from gleaner.chaos.hunt import hunt, orders
from gleaner.chaos.hunt_results import read
from gleaner.chaos.mutations import MUTATIONS, Mutation
from gleaner.chaos.plan import load
from gleaner.chaos.tally import RunReport
from gleaner.chaos.workers import Worker
from tests.shared_results import once

MORE = 6
"""Seeds that are tried after the one that caught it last."""
CAUGHT = read()


BY_RUN = sorted(MUTATIONS, key=lambda it: (it.campaign, it.lead, it.faults))
"""Bugs that are hunted in the same run follow each other, so that one process mostly tests all of them."""


def params() -> Iterator[ParameterSet]:
    """All bugs; those that are not the soonest of their check are for the night."""
    soonest: dict[str, str] = {}
    for caught in sorted(CAUGHT.values(), key=lambda it: it.at_s):
        soonest.setdefault(caught.check, caught.name)
    for mutation in BY_RUN:
        by_day = mutation.name == soonest[CAUGHT[mutation.name].check]
        yield pytest.param(mutation, marks=[] if by_day else [pytest.mark.long], id=mutation.name)


class Calm:
    """Runs without a planted bug, each once for all processes: several bugs are hunted in the same ones."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._runner = asyncio.Runner()
        self._worker = Worker(load(MUTATIONS[0].campaign).campaign.run_s)

    def result(self, mutation: Mutation, seed: int) -> RunReport:
        """The run in which that bug is hunted, without the bug."""
        (order,) = orders(load(mutation.campaign), mutation, [seed])

        def make(folder: Path) -> None:
            report = self._runner.run(self._worker.ask(order))
            (folder / "report.json").write_bytes(msgspec.json.encode(report))

        name = hashlib.sha256(msgspec.json.encode(order)).hexdigest()
        made = once(self._factory, f"calm-{name[:20]}", make)
        return msgspec.json.decode((made / "report.json").read_bytes(), type=RunReport)

    def close(self) -> None:
        self._runner.run(self._worker.end())
        self._runner.close()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calm]:
    made = Calm(tmp_path_factory)
    yield made
    made.close()


def test_every_planted_bug_was_caught_by_expected_check() -> None:
    assert len(MUTATIONS) >= 18
    for mutation in MUTATIONS:
        assert CAUGHT[mutation.name].check in mutation.caught_by
    tried = [it for it in params() if not it.marks]
    assert {CAUGHT[str(it.id)].check for it in tried} == {caught.check for caught in CAUGHT.values()}


@pytest.mark.timeout(300)  # processes of their own, with all imports, on a machine that may be busy
@pytest.mark.parametrize("mutation", list(params()))
def test_planted_bug_is_caught_by_its_check(mutation: Mutation) -> None:
    before = CAUGHT[mutation.name]
    found = asyncio.run(hunt(mutation, first=before.seed, seeds=1 + MORE, check=before.check))
    assert found.check == before.check, f"{before.check} noticed nothing in {found.seeds} seeds"


@pytest.mark.long  # by day the simulated jobs of `make test` show that the checks find nothing in sound code
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", BY_RUN, ids=lambda mutation: mutation.name)
def test_run_is_clean_without_its_planted_bug(mutation: Mutation, calm: Calm) -> None:
    without = calm.result(mutation, CAUGHT[mutation.name].seed)
    assert [str(broken) for broken in without.broken] == []
    assert without.ended == "done"
