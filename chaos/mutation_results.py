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
        verdict: of a survivor. equivalent: the program does the same. harmless: it differs in speed, texts or
            reports alone. hole: a check is missing.
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
    """Add results, and replace older ones of the same mutants; what was classified stays classified."""
    known = {(it.name, it.new): it for it in read(path)}
    for result in found:
        older = known.get((result.name, result.new))
        if older is not None and not result.noticed_by:
            result = msgspec.structs.replace(result, verdict=older.verdict, why=older.why)
        known[result.name, result.new] = result
    head = (
        "# Made by `python -m gleaner.chaos.mutation_score --write`. `verdict` and `why` of survivors are"
        " written by hand.\n\n"
    )
    path.write_text(head + tomli_w.dumps(msgspec.to_builtins(_File(list(known.values())))), encoding="utf-8")


def table(results: Sequence[MutantResult]) -> str:
    """Counts by package and the survivors, in Markdown."""
    rows = [
        _summary(results),
        "",
        "| package | mutants | noticed by the campaign | by unit tests | survive |",
    ]
    rows.append("|---|---|---|---|---|")
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
    for it in survivors:
        where = ":".join(it.name.removeprefix("gleaner.").split(":")[:2])
        verdict = it.verdict or "not classified"
        rows.append(f"| `{where}` | `{_short(it.old)}` to `{_short(it.new)}` | {verdict} | {it.why} |")
    return "\n".join(rows) + "\n"


def write_page(page: Path = PAGE, path: Path = FILE) -> None:
    """Put the table of all results into the page. Raises ValueError for a page without the markers."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"no {BEGIN.strip()} and {END.strip()} in {page}")
    page.write_text(before + begin + table(read(path)) + end + after, encoding="utf-8")


def _summary(results: Sequence[MutantResult]) -> str:
    noticed = sum(bool(it.noticed_by) for it in results)
    same = sum(it.verdict == "equivalent" for it in results)
    counted = len(results) - same
    share = 100.0 * noticed / counted if counted else 0.0
    return (
        f"Of {len(results)} sampled mutants {noticed} are noticed. {same} survivors are equivalent, so the "
        f"score is {noticed} of {counted}: {share:.0f} %."
    )


def _short(source: str) -> str:
    text = " ".join(source.split()).replace("|", "\\|")
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
