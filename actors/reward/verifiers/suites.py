"""`Suite`: test files of a problem, with a canary in each, which must fail. Pure.

Tests are the problem's own, so they are parsed here; no part of a response is. The number of expected reports
is known before any response runs.
"""

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from gleaner.actors.reward.entries import Json
from gleaner.actors.reward.verifiers.cases import BadTests

MAX_FILES = 200
MAX_BYTES = 4 * 2**20
OURS = ("conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml")
"""Names of files that steer pytest: a response cannot have them."""


@dataclass(frozen=True, slots=True)
class SuiteFile:
    """A file with tests. names: of its tests ("Class::method"), each with its number of reports; empty if
    only `count` is known."""

    path: str
    content: str
    names: Mapping[str, int] = field(default_factory=dict)
    count: int = 0


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of a problem, and the files beside them."""

    tests: tuple[SuiteFile, ...]
    others: Mapping[str, str]

    @property
    def count(self) -> int:
        """Tests in all."""
        return sum(file.count for file in self.tests)


def suite_of(tests: Sequence[Json]) -> Suite:
    """The files of a problem: objects with path and content, and `tests`, their number, if the source does
    not show it; or objects of content by path. Raises `BadTests`."""
    found: list[SuiteFile] = []
    others: dict[str, str] = {}
    for one in tests:
        if not isinstance(one, Mapping):
            raise BadTests(f"tests: expected objects with path and content, got {type(one).__name__}")
        rows = [one] if "path" in one else [{"path": path, "content": one[path]} for path in one]
        for row in rows:
            path, content = str(row["path"]), row.get("content")
            if not safe(path):
                raise BadTests(f"{path!r} is no path within a folder")
            if not isinstance(content, str):
                raise BadTests(f"{path}: content: expected a text, got {type(content).__name__}")
            if is_test(path):
                found.append(_file_of(path, content, row.get("tests")))
            else:
                others[path] = content
    if not found:
        raise BadTests('it has no file of tests; give {"path": "test_x.py", "content": "..."}')
    size = sum(len(file.content) for file in found) + sum(map(len, others.values()))
    if len(found) + len(others) > MAX_FILES or size > MAX_BYTES:
        raise BadTests(
            f"{len(found) + len(others)} files of {size} characters, at most {MAX_FILES}, {MAX_BYTES}"
        )
    return Suite(tuple(found), others)


def safe(path: str) -> bool:
    """Whether a path stays within its folder."""
    parts = PurePosixPath(path).parts
    return (
        bool(parts)
        and len(path) <= 200
        and not path.startswith("/")
        and ".." not in parts
        and "\0" not in path
    )


def is_test(path: str) -> bool:
    """Whether pytest collects a file of this name."""
    name = PurePosixPath(path).name
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def with_canaries(file: SuiteFile, seed: int) -> tuple[str, list[str]]:
    """Its content with tests that must fail, named like its own, and their names. A runner that reports them
    as passed was changed by the response."""
    own = sorted(file.names) or ["test_it"]
    like = own[seed % len(own)]
    taken = {one.rpartition("::")[2] for one in own}
    made = (f"{like.rpartition('::')[2]}_{2 + (seed // len(own) + more) % 8 + more}" for more in range(99))
    name = next(one for one in made if one not in taken)
    number = 3 + seed % 1000
    lines = [file.content, "", "", f"def {name}():", f"    assert {number} + 1 == {number}", ""]
    names = [name]
    case = next((one.partition("::")[0] for one in own if "::" in one), "")
    if case and "TestCase" in file.content:
        lines += [
            "",
            f"class {case}{number}(__import__('unittest').TestCase):",
            f"    def {name}(self):",
            f"        self.assertEqual({number}, {number} + 1)",
            "",
        ]
        names.append(f"{case}{number}::{name}")
    return "\n".join(lines), names


def _file_of(path: str, content: str, given: Json) -> SuiteFile:
    try:
        module = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadTests(f"{path}: {error}") from None
    if given is not None:
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise BadTests(f"{path}: tests: expected the number of its tests, got {given!r}")
        return SuiteFile(path, content, {}, given)
    names: Counter[str] = Counter()
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            names[node.name] = _times(node, path)
        elif isinstance(node, ast.ClassDef) and _is_case(node):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name.startswith(
                    "test"
                ):
                    names[f"{node.name}::{inner.name}"] = _times(inner, path) * _times(node, path)
    if not names:
        raise BadTests(f'{path}: its source has no visible tests; give their number: "tests": 3')
    return SuiteFile(path, content, dict(names), names.total())


def _is_case(node: ast.ClassDef) -> bool:
    bases = [base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases]
    return node.name.startswith("Test") or any(name.endswith("TestCase") for name in bases)


def _times(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, path: str) -> int:
    """The number of tests that the parameters of one test make."""
    times = 1
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("mark.parametrize"):
            values = decorator.args[1] if len(decorator.args) > 1 else None
            if not isinstance(values, ast.List | ast.Tuple):
                raise BadTests(
                    f"{path}: the parameters of {node.name} are no list in its source; give its number "
                    'of tests: "tests": 3'
                )
            times *= len(values.elts)
    return times
