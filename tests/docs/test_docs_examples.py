"""The documentation: its example runs, its links lead somewhere, the files that it names are there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLE = re.compile(r"<!-- example: (\S+) -->\n```python\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
SOURCE = re.compile(r"`((?:actors|configs|nodeagent|rlctl|supervisor|transport|chaos|bench|tests)/[\w/.]*)`")


def test_the_example_of_the_architecture_page_passes_as_it_stands(tmp_path: Path) -> None:
    found = EXAMPLE.findall((ROOT / "docs" / "architecture.md").read_text())
    assert found, "docs/architecture.md has no example"
    for name, text in found:
        (tmp_path / name).write_text(text)
    # In a process of its own: its message kinds must not meet those of other tests.
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_every_named_source_leads_to_a_file(page: Path) -> None:
    text = page.read_text()
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    missing += [path for path in SOURCE.findall(text) if not (ROOT / path).exists()]
    assert not missing
