"""Planted bugs, each caught by its named check; the run without it is clean.

The seed that caught a bug last is tried first (caught.toml). When code moves, a seed may meet other events.
Then a few more seeds may catch the bug before the test fails. `python -m gleaner.chaos.hunt --write` renews
the file.
"""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from gleaner.chaos.hunt import hunt, orders
from gleaner.chaos.hunt_results import read
from gleaner.chaos.mutations import MUTATIONS, Mutation
from gleaner.chaos.plan import load
from gleaner.chaos.tally import RunReport
from gleaner.chaos.workers import Worker

MORE = 6
"""Seeds that are tried after the one that caught it last."""
CAUGHT = read()


class Calm:
    """Runs without a planted bug, in one process for all of them."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._worker = Worker(load(MUTATIONS[0].campaign).campaign.run_s)
        self._results: dict[bytes, RunReport] = {}  # several bugs are hunted in the same runs

    def result(self, mutation: Mutation, seed: int) -> RunReport:
        """The run in which that bug is hunted, without the bug."""
        (order,) = orders(load(mutation.campaign), mutation, [seed])
        run = msgspec.json.encode(order)
        if run not in self._results:
            self._results[run] = self._runner.run(self._worker.ask(order))
        return self._results[run]

    def close(self) -> None:
        self._runner.run(self._worker.end())
        self._runner.close()


@pytest.fixture(scope="module")
def calm() -> Iterator[Calm]:
    made = Calm()
    yield made
    made.close()


def test_every_planted_bug_was_caught_by_expected_check() -> None:
    assert len(MUTATIONS) >= 18
    for mutation in MUTATIONS:
        assert CAUGHT[mutation.name].check in mutation.caught_by


@pytest.mark.timeout(300)  # processes of their own, with all imports, on a machine that may be busy
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bug_is_caught_only_where_it_is_planted(mutation: Mutation, calm: Calm) -> None:
    before = CAUGHT[mutation.name]
    found = asyncio.run(hunt(mutation, first=before.seed, seeds=1 + MORE, check=before.check))
    assert found.check == before.check, f"{before.check} noticed nothing in {found.seeds} seeds"
    without = calm.result(mutation, found.seed)
    assert [str(broken) for broken in without.broken] == []
    assert without.ended == "done"
