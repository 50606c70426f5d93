"""README.md: its code can be pasted as it is, and the page stays short."""

import re
import subprocess
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
MOST_LINES = 150


def blocks(language: str) -> list[str]:
    found = [text for kind, text in BLOCK.findall(README) if kind == language]
    assert found, f"README.md has no {language} block"
    return found


def test_python_blocks_of_the_readme_compile() -> None:
    for text in blocks("python"):
        compile(text, "README.md", "exec")


def test_shell_blocks_of_readme_parse_without_python() -> None:
    for text in blocks("bash"):
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert not re.search(r"^(import |from |with |\w+ = )", text, re.MULTILINE), text


def test_the_readme_stays_short() -> None:
    assert len(README.splitlines()) <= MOST_LINES
