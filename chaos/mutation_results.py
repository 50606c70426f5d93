"""Results of mutation scores: what noticed each mutant, and what the survivors are.

Owns the file and the table, and their places in a checkout: tests/chaos/mutants.toml and the table in
docs/reliability.md. A survivor is classified by hand in the file (`verdict`, `why`); a later run keeps that.
"""

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import tomli_w

from gleaner.chaos.mutants import PACKAGES

CHECKOUT = Path(__file__).resolve().parent.parent
FILE = CHECKOUT / "tests" / "chaos" / "mutants.toml"
PAGE = CHECKOUT / "docs" / "reliability.md"
BEGIN, END = "<!-- mutants: begin -->\n", "<!-- mutants: end -->\n"
SHOWN = 90
"""Characters of a changed piece of source in the table."""

Verdict = Literal["", "equivalent", "harmless", "hole"]


class MutantResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of a mutant.

    Args:
        name, old, new: see `mutants.Mutant`.
        sample: seed of the sample that drew it.
        noticed_by: the first seed and check, or the first test, that failed; "" for a survivor.
        verdict: of one that survived. equivalent: the program does the same. harmless: it differs in speed,
            texts or reports alone. hole: a check is missing; with `noticed_by`, it was missing at first.
        why: the reason for that, in a sentence.
    """

    name: str
    old: str
    new: str
    sample: int = 1
    noticed_by: str = ""
    verdict: Verdict = ""
    why: str = ""

    @property
    def package(self) -> str:
        """The entry of PACKAGES."""
        return next(name for name in PACKAGES if self.name.startswith(name + "."))


class _File(msgspec.Struct, forbid_unknown_fields=True):
    mutants: list[MutantResult] = []


def read(path: Path = FILE) -> list[MutantResult]:
    """All results; none where there is no file yet."""
    if not path.exists():
        return []
    return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File).mutants


def write(found: Iterable[MutantResult], path: Path = FILE) -> None:
    """Add results, and replace older ones of the same mutants; what was classified stays classified, and a
    survivor that is noticed now was a hole."""
    known = {(it.name, it.new): it for it in read(path)}
    for result in found:
        older = known.get((result.name, result.new))
        if older is not None:
            closed = bool(result.noticed_by) and not older.noticed_by
            verdict: Verdict = "hole" if closed else older.verdict
            result = msgspec.structs.replace(result, sample=older.sample, verdict=verdict, why=older.why)
        known[result.name, result.new] = result
    head = (
        "# Made by `python -m gleaner.chaos.mutation_score --write`. `verdict` and `why` of survivors are"
        " written by hand.\n\n"
    )
    path.write_text(head + tomli_w.dumps(msgspec.to_builtins(_File(list(known.values())))), encoding="utf-8")


def table(results: Sequence[MutantResult]) -> str:
    """The score of each sample, counts by package, survivors and closed holes, in Markdown."""
    rows = [
        "| seed of the sample | mutants | equivalent | noticed when first run | noticed now |",
        "|---|---|---|---|---|",
        *(_score(seed, results) for seed in sorted({it.sample for it in results})),
        "",
        "| package | mutants | noticed by the campaign | by unit tests | survive |",
        "|---|---|---|---|---|",
    ]
    for package in PACKAGES:
        of = [it for it in results if it.package == package]
        campaign = sum(" seed " in it.noticed_by for it in of)
        noticed = sum(bool(it.noticed_by) for it in of)
        rows.append(
            f"| `{package.removeprefix('gleaner.')}` | {len(of)} | {campaign} | {noticed - campaign} | "
            f"{len(of) - noticed} |"
        )
    survivors = [it for it in results if not it.noticed_by]
    if survivors:
        rows += ["", "| survivor | change | it is | why |", "|---|---|---|---|"]
    rows += (f"{_change(it)} {it.verdict or 'not classified'} | {it.why} |" for it in survivors)
    closed = [it for it in results if it.noticed_by and it.verdict == "hole"]
    if closed:
        rows += ["", "| closed hole | change | noticed now by | what was missing |", "|---|---|---|---|"]
    rows += (f"{_change(it)} `{it.noticed_by}` | {it.why} |" for it in closed)
    return "\n".join(rows) + "\n"


def write_page(page: Path = PAGE, path: Path = FILE) -> None:
    """Put the table of all results into the page. Raises ValueError for a page without the markers."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"no {BEGIN.strip()} and {END.strip()} in {page}")
    page.write_text(before + begin + table(read(path)) + end + after, encoding="utf-8")


def _score(seed: int, results: Sequence[MutantResult]) -> str:
    """A row for the sample of that seed; equivalent mutants do not count."""
    of = [it for it in results if it.sample == seed]
    counted = sum(it.verdict != "equivalent" for it in of)
    now = sum(bool(it.noticed_by) for it in of)
    first = now - sum(it.verdict == "hole" and bool(it.noticed_by) for it in of)

    def share(noticed: int) -> str:
        return f"{noticed} of {counted}, {100.0 * noticed / counted:.0f} %" if counted else "-"

    return f"| {seed} | {len(of)} | {len(of) - counted} | {share(first)} | {share(now)} |"


def _change(result: MutantResult) -> str:
    where = ":".join(result.name.removeprefix("gleaner.").split(":")[:2])
    return f"| `{where}` | `{_short(result.old)}` to `{_short(result.new)}` |"


def _short(source: str) -> str:
    text = " ".join(source.split()).replace("|", "\\|")
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
