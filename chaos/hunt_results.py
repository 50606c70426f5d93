"""Results of hunts: which check caught which planted bug, in which seed.

Owns the file and the table, and their places in a checkout: tests/chaos/caught.toml, which a test hunts
again, and the table in docs/reliability.md, which is generated from the file only. Hunts nothing (`hunt`
does).
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import tomli_w

from gleaner.chaos.mutations import BY_NAME, MUTATIONS, Mutation

CHECKOUT = Path(__file__).resolve().parent.parent
TABLE = CHECKOUT / "tests" / "chaos" / "caught.toml"
PAGE = CHECKOUT / "docs" / "reliability.md"
BEGIN, END = "<!-- hunt: begin -->\n", "<!-- hunt: end -->\n"


class HuntResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Result of a hunt for one planted bug.

    Args:
        name: of the bug.
        seeds: number of seeds run until then, the catching one included.
        check: the check that caught it; "" where none did.
        seed: the first one that caught it.
        at_s: virtual seconds of that run at which the check failed.
        text: text of the violation.
    """

    name: str
    seeds: int
    check: str = ""
    seed: int = -1
    at_s: float = 0.0
    text: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    caught: list[HuntResult] = []


def read(path: Path = TABLE) -> dict[str, HuntResult]:
    """Results by the name of the bug; empty where there is no file yet."""
    if not path.exists():
        return {}
    tree = tomllib.loads(path.read_text(encoding="utf-8"))
    return {it.name: it for it in msgspec.convert(tree, _File).caught}


def write(found: Iterable[HuntResult], path: Path = TABLE) -> dict[str, HuntResult]:
    """Replace older results of the same bugs; drop bugs that no longer exist."""
    known = read(path) | {it.name: it for it in found}
    rows = {name: known[name] for name in BY_NAME if name in known}
    head = (
        "# Made by `python -m gleaner.chaos.hunt --write`: what catches each planted bug, in which seed.\n\n"
    )
    path.write_text(head + tomli_w.dumps(msgspec.to_builtins(_File(list(rows.values())))), encoding="utf-8")
    return rows


def table(caught: Mapping[str, HuntResult], mutations: Sequence[Mutation] = MUTATIONS) -> str:
    """Table in Markdown, with a line of counts above."""
    count = sum(bool(it.check) for it in caught.values())
    rows = [
        f"Of {len(mutations)} planted bugs {count} are caught.",
        "",
        "| planted bug | safeguard that it takes out | broken meanwhile | caught by | seeds until caught |",
        "|---|---|---|---|---|",
    ]
    for mutation in mutations:
        it = caught.get(mutation.name)
        found = ("not hunted yet", "-") if it is None else ("**nothing**", f"none in {it.seeds}")
        if it is not None and it.check:
            found = (it.check, str(it.seeds))
        rows.append(
            f"| {mutation.name} | {mutation.safeguard} | {broken_in(mutation)} | {found[0]} | {found[1]} |"
        )
    return "\n".join(rows) + "\n"


def broken_in(mutation: Mutation) -> str:
    """Faults of a hunt for this bug, as text."""
    if mutation.lead:
        return mutation.lead
    return ", ".join(f"`{kind}`" for kind in mutation.faults) or "everything"


def put_in(page: str, text: str) -> str:
    """The page with this text between its markers. Raises ValueError for a page without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"no {BEGIN.strip()} and {END.strip()} in the page")
    return before + begin + text + end + after


def taken_out(page: str) -> str:
    """The text between the markers of a page; "" without them."""
    return page.partition(BEGIN)[2].partition(END)[0]
