"""Project files: workflows and hooks call existing targets; fragments are named well.

towncrier reads the changelog fragments.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
AREAS = ("training", "rollout", "gateway", "operations", "library")
FRAGMENT = re.compile(r"(\+[\w-]+|\d+)\.(added|changed|fixed|removed)(\.\d+)?\.md")


def targets() -> set[str]:
    """The targets of the Makefile."""
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return set(phony.split())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_calls_targets_of_the_makefile(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = {
        word
        for command in commands
        for line in command.splitlines()
        if line.startswith("make ")
        for word in line.split()[1:]
        if re.fullmatch(r"[a-z-]+", word)
    }
    assert called
    assert called <= targets()


def test_pull_request_is_checked_on_every_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    assert "pull_request" in workflow[True]  # YAML reads `on` as true
    assert set(workflow["jobs"]) == {"lint", "test", "newer-python", "coverage", "docs", "wheel"}
    for name in ("lint", "wheel"):
        assert workflow["jobs"][name]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]


def test_hooks_before_a_commit_are_parts_of_make_lint() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    makefile = (ROOT / "Makefile").read_text()
    assert [hook["id"] for hook in local["hooks"]] == ["ruff", "ruff-format", "prose"]
    for hook in local["hooks"]:
        command = hook["entry"].removesuffix(" --force-exclude").replace(".venv/bin", "$(BIN)")
        assert f"\t{command}" in makefile


def test_fragments_are_in_an_area_and_have_a_kind() -> None:
    folder = ROOT / "newsfragments"
    assert {path.name for path in folder.iterdir()} == {"README.md", "template.md.jinja", *AREAS}
    wrong = [str(path) for path in folder.glob("*/*.md") if not FRAGMENT.fullmatch(path.name)]
    assert not wrong, "newsfragments/README.md has the form of a name"


def test_changelog_groups_fragments_by_area(tmp_path: Path) -> None:
    (tmp_path / "newsfragments").mkdir()
    for name in ("pyproject.toml", "CHANGELOG.md", "newsfragments/template.md.jinja"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name, text in {
        "gateway/+embeddings.added.md": "The gateway serves embeddings.",
        "training/7.fixed.md": "A step ends.",
    }.items():
        path = tmp_path / "newsfragments" / name
        path.parent.mkdir()
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--yes", "--version", "0.2.0", "--date", "2030-01-01"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "CHANGELOG.md").read_text()
    section = text.partition("## [0.2.0] - 2030-01-01")[2].partition("## [0.1.0]")[0]
    training, _, gateway = section.partition("Gateway and integrations")
    assert re.search(r"Training\n+.*Fixed\n+- A step ends. \(#7\)", training)
    assert "No significant changes" not in section
    assert re.search(r"Added\n+- The gateway serves embeddings.", gateway)
    assert not list((tmp_path / "newsfragments").glob("*/*.md"))
