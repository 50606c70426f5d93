"""Mutants: made by rule, found again by name, and each a program that can run."""

import ast
import asyncio
import random
from pathlib import Path

import pytest

from gleaner.chaos.mutants import PACKAGES, Mutant, NoMutant, all_mutants, changed_by, edits_of, mutants_of
from gleaner.chaos.mutation_results import MutantResult, read, table, write
from gleaner.chaos.mutation_score import drawn, noticed_by_campaign
from gleaner.chaos.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]
TINY = str(Path(__file__).with_name("tiny.toml"))
SOURCE = '''
async def take(self, free, wanted):
    """Take some."""
    if free < wanted and self.open:
        self.left = free - 1
        self.log.info("less than wanted")
        await self.wait(free, wanted)
    elif wanted is None:
        raise ValueError("a < b")
    return True
'''


def changes(rule: str) -> list[tuple[str, str]]:
    return [(it.old, it.new) for it in mutants_of("gleaner.supervisor.x", SOURCE) if it.rule == rule]


def test_rules_change_bounds_conditions_numbers_and_lines() -> None:
    assert changes("bound") == [("free < wanted", "(free <= wanted)")]
    assert changes("condition") == [
        ("free < wanted and self.open", "(not (free < wanted and self.open))"),
        ("wanted is None", "(wanted is not None)"),
    ]
    assert changes("and-or") == [("free < wanted and self.open", "((free < wanted) or (self.open))")]
    assert changes("off by one") == [("free - 1", "(free)")]
    assert changes("lost line") == [("self.left = free - 1", "pass")]
    assert changes("lost await") == [("await self.wait(free, wanted)", "pass")]
    assert changes("arguments") == [("self.wait(free, wanted)", "self.wait(wanted, free)")]
    assert changes("result") == [("return True", "return not True")]


def test_log_lines_texts_and_errors_are_no_mutants() -> None:
    assert not [
        it for it in mutants_of("gleaner.supervisor.x", SOURCE) if "log" in it.old or "Value" in it.old
    ]


def test_mutant_changes_its_place_alone() -> None:
    for mutant in mutants_of("gleaner.supervisor.x", SOURCE):
        changed = changed_by(mutant, SOURCE)
        assert changed != SOURCE
        assert len(changed) - len(SOURCE) == len(mutant.new) - len(mutant.old)
        ast.parse(changed)


@pytest.fixture(scope="module")
def mutants() -> list[Mutant]:
    """Of the whole product."""
    return all_mutants(ROOT)


def test_sampled_mutants_of_the_product_are_valid_programs(mutants: list[Mutant]) -> None:
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    for mutant in random.Random(3).sample(mutants, 60):
        (edit,) = edits_of(mutant.name)
        compile(edit.new, mutant.module, "exec")


def test_planted_bug_and_mutant_are_found_by_name_and_nothing_else() -> None:
    assert edits_of(MUTATIONS[0].name) == MUTATIONS[0].edits
    with pytest.raises(NoMutant, match="neither a planted bug nor a mutant"):
        edits_of("os:1:1+1:bound")
    with pytest.raises(NoMutant, match="no such mutant"):
        edits_of("gleaner.supervisor.mailbox:1:0+1:bound")


def test_sample_has_equally_many_of_each_package(mutants: list[Mutant]) -> None:
    sample = drawn(mutants, 18, seed=5)
    assert [sum(mutant.package == name for mutant in sample) for name in PACKAGES] == [3] * len(PACKAGES)
    assert sample == drawn(mutants, 18, seed=5)


@pytest.mark.long
def test_campaign_notices_a_bad_mutant_and_is_clean_without_one(mutants: list[Mutant]) -> None:
    (bad,) = [
        it
        for it in mutants
        if it.module == "gleaner.actors.rollout.dispatch.dispatcher"
        and it.rule == "lost line"
        and it.old.startswith("instance.sending.append(self._ctx.background(delivery")
    ]
    assert asyncio.run(noticed_by_campaign("", TINY, [0])) == ""
    assert " seed 0: " in asyncio.run(noticed_by_campaign(bad.name, TINY, [0]))


def result(line: int, noticed_by: str = "", **more: object) -> MutantResult:
    mutant = Mutant("gleaner.supervisor.x", line, 0, "bound", "a < b", "(a <= b)")
    return MutantResult(name=mutant.name, old="a < b", new="(a <= b)", noticed_by=noticed_by, **more)  # type: ignore[arg-type]


def test_score_leaves_out_equivalent_survivors_and_keeps_classes(tmp_path: Path) -> None:
    file = tmp_path / "mutants.toml"
    write([result(1, "ci seed 2: I1"), result(2, verdict="equivalent", why="never equal"), result(3)], file)
    write([result(2)], file)  # a later run knows no class
    assert [it.verdict for it in read(file)] == ["", "equivalent", ""]
    text = table(read(file))
    assert "| 1 | 3 | 1 | 1 of 2, 50 % | 1 of 2, 50 % |" in text
    assert "| equivalent | never equal |" in text
    assert "not classified" in text
    assert "| `supervisor` | 3 | 1 | 0 | 2 |" in text


def test_score_states_first_runs_apart_when_a_hole_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "mutants.toml"
    write([result(1, "ci seed 2: I1", sample=4), result(2, sample=4, verdict="hole", why="no test")], file)
    write([result(3, sample=5)], file)
    write([result(2, "tests/a.py::test_b"), result(3, "tests/a.py::test_c")], file)  # by name: no sample
    assert [(it.sample, it.verdict) for it in read(file)] == [(4, ""), (4, "hole"), (5, "hole")]
    text = table(read(file))
    assert "| 4 | 2 | 0 | 1 of 2, 50 % | 2 of 2, 100 % |" in text
    assert "| 5 | 1 | 0 | 0 of 1, 0 % | 1 of 1, 100 % |" in text
    assert "| `tests/a.py::test_b` | no test |" in text
