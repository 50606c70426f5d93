"""Mutants: small changes of production source, made by rule, which tests and campaigns should notice.

Owns the rules and the names. A planted bug (`mutations`) takes out a safeguard that its author had in mind; a
mutant is made without any idea of the checks, so the share of noticed mutants measures the checks (mutation
testing: DeMillo, Lipton and Sayward, Hints on Test Data Selection, Computer 11(4), 1978). Pure. Imports
nothing of the product: a worker process makes its mutant before anything is imported.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from gleaner.chaos.mutate import Edit, source_of
from gleaner.chaos.mutations import BY_NAME

PACKAGES = (
    "gleaner.actors.rollout",
    "gleaner.actors.cluster",
    "gleaner.actors.training",
    "gleaner.actors.reward",
    "gleaner.actors.weights",
    "gleaner.supervisor",
)
"""What is mutated: policies and actors."""
LEFT_OUT = ("testing", "inspection", "settings", "__main__")
"""Modules that no job runs, or that only report."""
SAYS = frozenset({"log", "logger", "warning", "info", "debug", "error", "exception"})
"""Calls whose loss changes the log alone."""
COMMUTE = frozenset({"min", "max", "math.gcd", "np.minimum", "np.maximum"})
"""Functions of which the first two arguments may change places."""
BOUNDS: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
FLIPS: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change. rule: its kind; old, new: the source of the changed node, without and with it."""

    module: str
    line: int
    column: int
    rule: str
    old: str
    new: str

    @property
    def name(self) -> str:
        """Finds it again, as long as the source stays."""
        return f"{self.module}:{self.line}:{self.column}+{len(self.old)}:{self.rule}"

    @property
    def package(self) -> str:
        """The entry of PACKAGES."""
        return next(name for name in PACKAGES if self.module.startswith(name + "."))


class NoMutant(ValueError):
    """There is no such mutant in the present source."""


Found = Iterator[tuple[str, ast.AST, str]]
"""(rule, node, its new source)."""


def mutants_of(module: str, source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its source."""
    tree, made = ast.parse(source), []
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    for node in _in_functions(tree):
        for rule in RULES:
            for name, place, new in rule(node):
                old = _source(place, lines)
                if old != new:
                    line, column = place.lineno, place.col_offset  # type: ignore[attr-defined]
                    made.append(Mutant(module, line, column, name, old, new))
    return sorted(set(made), key=lambda it: (it.line, it.column, it.rule, it.new))


def _source(node: ast.AST, lines: Sequence[bytes]) -> str:
    """As `ast.get_source_segment`, which splits the whole source at each call."""
    place: tuple[int, int, int, int] = (
        node.lineno - 1, node.col_offset, node.end_lineno - 1, node.end_col_offset  # type: ignore[attr-defined]
    )  # fmt: skip
    first, begin, last, end = place
    if first == last:
        return lines[first][begin:end].decode()
    return b"".join((lines[first][begin:], *lines[first + 1 : last], lines[last][:end])).decode()


def changed_by(mutant: Mutant, source: str) -> str:
    """The source with the mutant. Raises NoMutant."""
    lines = source.splitlines(keepends=True)
    if not 0 < mutant.line <= len(lines):
        raise NoMutant(f"{mutant.name}: the module has {len(lines)} lines")
    head = "".join(lines[: mutant.line - 1])
    at = len(head) + len(lines[mutant.line - 1].encode()[: mutant.column].decode())
    if not source.startswith(mutant.old, at):
        raise NoMutant(f"{mutant.name}: the source has changed, expected {mutant.old!r} there")
    return source[:at] + mutant.new + source[at + len(mutant.old) :]


def edits_of(name: str) -> tuple[Edit, ...]:
    """The edits of the planted bug, or of the mutant, of that name. Raises NoMutant, CannotPlant."""
    known = BY_NAME.get(name)
    return known.edits if known is not None else (edit_of(name),)


def edit_of(name: str) -> Edit:
    """The edit of the mutant of that name. Raises NoMutant, CannotPlant."""
    if not name.startswith(tuple(f"{package}." for package in PACKAGES)):
        raise NoMutant(f"{name}: neither a planted bug nor a mutant: those are of {', '.join(PACKAGES)}")
    module = name.partition(":")[0]
    source, _ = source_of(module)
    for mutant in mutants_of(module, source):
        if mutant.name == name:
            return Edit(module, source, changed_by(mutant, source))
    raise NoMutant(f"{name}: there is no such mutant in the present source")


def all_mutants(root: Path) -> list[Mutant]:
    """Those of all PACKAGES below the folder of the package `gleaner`."""
    found = []
    for package in PACKAGES:
        folder = root.joinpath(*package.split(".")[1:])
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if not any(part in LEFT_OUT for part in parts) and parts[-1] != "__init__":
                found += mutants_of(".".join((package, *parts)), path.read_text(encoding="utf-8"))
    return found


# -- the rules --


def _compares(node: ast.AST) -> Found:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right, kind = ast.unparse(node.left), ast.unparse(node.comparators[0]), type(node.ops[0])
        if kind in BOUNDS:
            yield "bound", node, f"({left} {BOUNDS[kind]} {right})"
        elif kind in FLIPS:
            yield "condition", node, f"({left} {FLIPS[kind]} {right})"


def _conditions(node: ast.AST) -> Found:
    if isinstance(node, ast.If | ast.IfExp) and not isinstance(node.test, ast.Compare):
        yield "condition", node.test, f"(not ({ast.unparse(node.test)}))"
    if isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield "and-or", node, "(" + word.join(f"({ast.unparse(part)})" for part in node.values) + ")"


def _numbers(node: ast.AST) -> Found:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        swapped = "-" if isinstance(node.op, ast.Add) else "+"
        if isinstance(node.right, ast.Constant) and type(node.right.value) is int:
            yield "off by one", node, f"({ast.unparse(node.left)})"
        elif not isinstance(node.left, ast.Constant | ast.JoinedStr | ast.List | ast.Tuple):
            yield "sign", node, f"({ast.unparse(node.left)} {swapped} {ast.unparse(node.right)})"


def _lines(node: ast.AST) -> Found:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Await):
        yield "lost await", node, "pass"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        if not _says(node.value):
            yield "lost line", node, "pass"
    elif isinstance(node, ast.Assign):
        if isinstance(node.targets[0], ast.Attribute | ast.Subscript):
            yield "lost line", node, "pass"
    elif isinstance(node, ast.AugAssign):
        yield "lost line", node, "pass"
    elif isinstance(node, ast.Return) and _is_flag(node.value):
        yield "result", node, f"return not {ast.unparse(node.value)}"


def _arguments(node: ast.AST) -> Found:
    if not isinstance(node, ast.Call) or len(node.args) < 2 or _says(node):
        return
    function = ast.unparse(node.func)
    if function in COMMUTE or any(isinstance(argument, ast.Starred) for argument in node.args):
        return
    first, second, *rest = (ast.unparse(argument) for argument in node.args)
    named = (f"{word.arg}=" if word.arg else "**" for word in node.keywords)
    words = [name + ast.unparse(word.value) for name, word in zip(named, node.keywords, strict=True)]
    if first != second:
        yield "arguments", node, f"{function}({', '.join([second, first, *rest, *words])})"


RULES: tuple[Callable[[ast.AST], Found], ...] = (_compares, _conditions, _numbers, _lines, _arguments)


def _is_flag(node: ast.expr | None) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _says(call: ast.Call) -> bool:
    """It writes to the log, or makes a text or an error."""
    function = call.func
    names = {part.attr for part in ast.walk(function) if isinstance(part, ast.Attribute)}
    names |= {part.id for part in ast.walk(function) if isinstance(part, ast.Name)}
    return bool(names & SAYS) or any(
        name[0].isupper() and name.endswith(("Error", "Refused")) for name in names
    )


def _in_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes within functions, without texts of errors, reports of state and annotations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in (
            "__repr__",
            "summary",
        ):
            for part in node.body:
                yield from _without_raises(part)


def _without_raises(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Raise | ast.Assert | ast.FunctionDef | ast.AsyncFunctionDef | ast.JoinedStr):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _without_raises(child)
