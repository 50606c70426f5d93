"""The wheel: one typed package, complete, and nothing else."""

import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(link.name for link in (ROOT / "gleaner").iterdir() if link.is_symlink())


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_holds_one_package_and_nothing_else(names: set[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"gleaner"}


def test_wheel_holds_every_module_of_the_checkout(names: set[str]) -> None:
    listed = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git checkout")
    modules = {f"gleaner/{file}" for file in listed.stdout.split() if file.endswith(".py")}
    modules = {file for file in modules if (ROOT / file).exists() and "/engines/" not in file}
    assert len(modules) > 700
    assert not modules - names


@pytest.mark.parametrize(
    "file",
    [
        "py.typed",
        "configs/quickstart.toml",
        "configs/campaigns/ci.toml",
        "configs/traces/quickstart.csv",
        "nodeagent/gleaner-nodeagent.service",
        "rlctl/templates/style.css",
        "rlctl/templates/run.html.jinja",
        "sim/models/shapes.toml",
        "actors/engine/sglang_plugin/gleaner_sglang.py",
        "actors/engine/sglang_plugin/gleaner_sglang-0.1.0.dist-info/entry_points.txt",
        "actors/engine/vllm_plugin/gleaner_vllm/__init__.py",
    ],
)
def test_wheel_holds_data_files_beside_modules(file: str, names: set[str]) -> None:
    assert f"gleaner/{file}" in names


def test_wheel_has_all_commands_including_chaos(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entries = "gleaner-0.1.0.dist-info/entry_points.txt"
        text = archive.read(entries).decode()
    for line in (
        "rlctl = gleaner.rlctl.__main__:script",
        "nodeagent = gleaner.nodeagent.__main__:main",
        "[rlctl.commands]",
        "sim = gleaner.chaos.commands.sim",
    ):
        assert line in text
