"""The installed package in a project with folders of the same names.

PyPI's supervisor is installed beside it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPI_SUPERVISOR = ROOT / ".venv" / "pypi-supervisor"
"""Where `make setup` installs it: in the environment itself, `import supervisor` would not fail where it
must."""

PROJECT = {
    "configs/__init__.py": "MINE = True\n",
    "actors/__init__.py": "MINE = True\n",
    "transport/__init__.py": "MINE = True\n",
    "sim.py": "MINE = True\n",
    "chaos.py": "MINE = True\n",
}
MINE = """
import actors, chaos, configs, sim, transport
for module in (actors, chaos, configs, sim, transport):
    assert module.MINE
"""

PUBLISHES = """
import supervisor.options
import gleaner
import gleaner.rlctl

assert supervisor.options.VERSION
assert gleaner.rlctl.publisher is gleaner.publisher
assert gleaner.rlctl.connect is gleaner.connect
try:
    gleaner.publisher("runs")
except gleaner.CannotPublish as problem:
    print(gleaner.__file__, problem)
"""

PLUGS_IN = """
import importlib, os
plugin = importlib.import_module(os.environ["VERL_USE_EXTERNAL_MODULES"])
print(plugin.__file__, plugin.NAME)
"""

ROLLOUT = "verl/workers/rollout"
STUBS = ["ray", "omegaconf", "verl", "verl/workers", ROLLOUT]
STUBS += [f"{ROLLOUT}/{name}" for name in ("base", "replica", "router", "utils")]
STUB = """
class Stub(type):
    def __getattr__(cls, name):
        return __getattr__(name)
    def __setitem__(cls, key, value): pass
    def __call__(cls, *args, **kwargs): return cls
    def __or__(cls, other): return cls
    __ror__ = __or__

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Stub(name, (), {})
"""
"""Stub modules of verl's environment, in which every name exists and takes any argument.

`verl_classes.py` runs the plug-in with the real ones.
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(project: Path, site: Path, program: str, **env: str) -> str:
    (project / "main.py").write_text(MINE + program)
    path = os.pathsep.join([str(site), str(PYPI_SUPERVISOR)])
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pypi_supervisor_is_installed() -> None:
    assert (PYPI_SUPERVISOR / "supervisor" / "options.py").is_file(), "make setup installs it"


def test_project_with_same_folder_names_publishes(project: Path, site: Path) -> None:
    output = run(project, site, PUBLISHES)
    assert output.startswith(f"{site / 'gleaner' / '__init__.py'} ")
    assert "runs" in output


def test_project_with_same_folder_names_plugs_into_verl(project: Path, site: Path) -> None:
    for name in STUBS:
        (project / name).mkdir()
        (project / name / "__init__.py").write_text(STUB)
    output = run(project, site, PLUGS_IN, VERL_USE_EXTERNAL_MODULES="gleaner.rlctl.integrations.verl")
    assert output == f"{site / 'gleaner' / 'rlctl' / 'integrations' / 'verl.py'} gleaner\n"


def test_command_shows_its_version(project: Path, site: Path) -> None:
    program = "import sys\nfrom gleaner.rlctl.__main__ import main\nsys.exit(main(['--version']))\n"
    assert run(project, site, program).startswith("gleaner ")


def test_package_import_loads_nothing_else(project: Path, site: Path) -> None:
    program = (
        "import sys\nbefore = set(sys.modules)\nimport gleaner\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))\n"
    )
    slow = {"torch", "numpy", "zmq", "msgspec", "asyncio", "aiohttp"}
    assert not slow & set(run(project, site, program).split())
