"""The prose check: it finds each kind of avoided word in prose only."""

from pathlib import Path

import pytest

from tests.prose.__main__ import main
from tests.prose.check import GROUPS, BadSettings, measure, read_limits
from tests.prose.rules import matches
from tests.prose.texts import texts

PLANTED = {
    "who": "The agent asks whoever has the chunk.",
    "nobody": "A chunk that nobody asks for is dropped.",
    "told": "The manager is told of the death.",
    "say": "The engine says which version it serves.",
    "hear": "The head has not heard of the node.",
    "owe": "Frames that the instance owes.",
    "stands": "The token stands in the log.",
    "archaic": "Weights are read at the begin of a step.",
    "house": "A package has three rooms.",
}


def project(folder: Path, limit: float, **files: str) -> Path:
    """A tree with these files in `src/`, and the same limit for each group."""
    groups = ", ".join(f"{group} = {limit}" for group in GROUPS)
    (folder / "pyproject.toml").write_text(f"[tool.prose.limits]\nsrc = {{ {groups} }}\n")
    (folder / "src").mkdir()
    for name, text in files.items():
        (folder / "src" / name.replace("_", ".")).write_text(text)
    return folder


def test_every_group_has_a_planted_violation() -> None:
    assert set(PLANTED) == set(GROUPS)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    ("file", "form"),
    [
        ("a_py", '"""A module.\n\n{}\n"""\n'),
        ("a_py", "x = 1\n\n# {}\n"),
        ("a_py", 'def f() -> None:\n    x = 1\n    log.info("{}", x)\n'),
        ("a_py", 'x = 1\n\nparser.add_argument("--x", help="{}")\n'),
        ("a_py", 'def f() -> None:\n    x = 1\n    raise ValueError("{}")\n'),
        ("a_py", 'def f() -> None:\n    x = 1\n    raise ValueError(f"{{x}}: {}")\n'),
        ("a_md", "# A page\n\n{}\n"),
    ],
    ids=["docstring", "comment", "log line", "help", "error", "f-string", "markdown"],
)
def test_check_names_path_and_line_above_the_limit(
    group: str, file: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = project(tmp_path, 1, **{file: form.format(PLANTED[group])})
    assert main([], root) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"src/{file.replace('_', '.')}:3: ")
    assert ": use " in first
    assert f"the group `{group}`" in last
    assert "at most 1 by [tool.prose.limits]" in last


def test_check_passes_when_words_are_within_their_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = project(tmp_path, 100, a_md="plain " * 999 + "nobody\n")
    assert main([], root) == 0
    assert capsys.readouterr().out == ""
    assert main(["--all"], root) == 0
    assert capsys.readouterr().out.startswith("src/a.md:1: nobody: use ")
    assert main(["--rates"], root) == 0
    assert "nobody = 10," in capsys.readouterr().out


def test_code_is_no_prose(tmp_path: Path) -> None:
    page = "See `who_is_up`.\n\n```\nnobody tells\n```\n\n[a page](whom.md) <!-- nobody -->\n"
    code = 'told = "nobody owes"\n\n\ndef who() -> str:\n    """Return `whom`."""\n    return told\n'
    folder = measure(project(tmp_path, 0, a_md=page, a_py=code), "src")
    assert folder.findings == []
    assert folder.words == 6  # See . a page] Return .


@pytest.mark.parametrize(
    "text", ["users who train", "a person who\nreads", "whose weights", "a stand-in", "standby"]
)
def test_persons_and_longer_words_are_allowed(text: str) -> None:
    assert list(matches(text)) == []


def test_literals_are_read_in_packages_and_not_in_tests(tmp_path: Path) -> None:
    root = project(tmp_path, 0, a_py='def f(x: str) -> str:\n    return f"{x} tells {x}" if x else "told"\n')
    (root / "src").rename(root / "tests")
    assert measure(root, "tests").words == 0
    (root / "tests").rename(root / "actors")
    assert [it.match.word for it in measure(root, "actors").findings] == ["tells"]


def test_operation_tell_is_allowed_as_a_label() -> None:
    assert list(matches("tell: no route")) == []


def test_mark_allows_its_line_only(tmp_path: Path) -> None:
    root = project(tmp_path, 0, a_py="# who asks  prose: ok\n", a_md="nobody <!-- prose: ok -->\nnobody\n")
    assert [(it.path, it.line) for it in measure(root, "src").findings] == [("src/a.md", 2)]


def test_pages_made_from_the_code_are_left_out(tmp_path: Path) -> None:
    root = project(tmp_path, 0, a_md="# A page\n\n<!-- made by `python -m it` -->\n\nnobody\n")
    assert measure(root, "src").words == 0


def test_documentation_of_attributes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text('class A:\n    x = 1\n    """The limit."""\n')
    assert [(it.line, it.text) for it in texts(path)] == [(3, "The limit.")]


def test_settings_with_unknown_folder_or_missing_group_are_refused(tmp_path: Path) -> None:
    root = project(tmp_path, 0)
    settings = root / "pyproject.toml"
    settings.write_text(settings.read_text().replace("src =", "source ="))
    with pytest.raises(BadSettings, match="there is no source"):
        read_limits(root)
    settings.write_text("[tool.prose.limits]\nsrc = { who = 1 }\n")
    with pytest.raises(BadSettings, match="src: expected a limit for each of who, nobody"):
        read_limits(root)
