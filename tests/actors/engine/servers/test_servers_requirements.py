"""Requirements of an engine: missing environments and servers, with remedies."""

import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from gleaner.actors.engine.servers.requirements import unmet
from gleaner.configs.schema import Config, Engine
from gleaner.nodeagent.adapters import RealAdapterFactory


def environment(home: Path, program: str) -> str:
    """A folder like a virtual environment whose interpreter runs `program`, a shell script."""
    interpreter = home / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text(f"#!/bin/sh\n{program}\n")
    interpreter.chmod(interpreter.stat().st_mode | stat.S_IXUSR)
    return str(home)


def having(home: Path, package: str, version: str, *plugins: str) -> str:
    """A folder like a virtual environment whose interpreter reports an installed package."""
    site = home / "site"
    (site / package).mkdir(parents=True)
    (site / package / "__init__.py").write_text("raise SystemExit('a check imports nothing of a server')")
    about = site / f"{package}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (about / "top_level.txt").write_text(f"{package}\n")
    points = "".join(f"{name} = here:run\n" for name in plugins)
    (about / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{points}")
    return environment(home, f'exec env PYTHONPATH="{site}" "{sys.executable}" "$@"')


def lacks(**settings: object) -> str:
    (line,) = unmet(Engine(**settings))  # type: ignore[arg-type]
    return line


def test_builtin_engine_needs_nothing() -> None:
    assert unmet(Engine()) == []


def test_missing_server_package_is_named_with_the_interpreter() -> None:
    problem = lacks(kind="sglang")
    assert problem.startswith(f"{sys.executable}: engine.kind is sglang, and sglang is not installed there")
    assert "make engine-sglang" in problem


def test_missing_environment_is_named(tmp_path: Path) -> None:
    problem = lacks(kind="vllm", environment=str(tmp_path / "none"))
    assert problem == (
        f"engine.environment {tmp_path / 'none'}: no such folder; `make engine-vllm` makes one "
        "(docs/engines.md)"
    )
    (tmp_path / "empty").mkdir()
    assert "has no bin/python" in lacks(kind="vllm", environment=str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("echo it is broken >&2; exit 3", "its interpreter ended with 3: it is broken"),
        ("echo nothing of use", "does not list what is installed"),
    ],
)
def test_broken_interpreter_is_named_with_its_output(tmp_path: Path, program: str, word: str) -> None:
    assert word in lacks(kind="sglang", environment=environment(tmp_path / "home", program))


def test_unstartable_interpreter_is_named(tmp_path: Path) -> None:
    home = environment(tmp_path / "home", "")
    os.truncate(f"{home}/bin/python", 0)
    (tmp_path / "home" / "bin" / "python").write_text("#!/nowhere/interpreter\n")
    assert "its interpreter cannot be started: No such file" in lacks(kind="sglang", environment=home)


def test_package_is_found_without_an_import(tmp_path: Path) -> None:
    assert unmet(Engine(kind="sglang", environment=having(tmp_path / "home", "sglang", "0.5.23"))) == []


def test_old_release_is_refused_with_the_oldest_supported(tmp_path: Path) -> None:
    problem = lacks(kind="sglang", environment=having(tmp_path / "home", "sglang", "0.4.9"))
    assert "sglang 0.4.9 is too old, 0.5.20 and newer" in problem


@pytest.mark.parametrize("version", ["0.30", "0.31.0rc1", "0.1.dev1+g1234567", "nightly"])
def test_new_or_unknown_release_is_accepted(tmp_path: Path, version: str) -> None:
    home = having(tmp_path / "home", "vllm", version, "gleaner")
    assert unmet(Engine(kind="vllm", environment=home)) == []


def test_vllm_without_plug_in_gets_the_install_command(tmp_path: Path) -> None:
    problem = lacks(kind="vllm", environment=having(tmp_path / "without", "vllm", "0.32.0"))
    assert "pip install --no-deps" in problem
    assert "vllm_plugin" in problem
    assert (
        unmet(Engine(kind="vllm", environment=having(tmp_path / "with", "vllm", "0.32.0", "gleaner"))) == []
    )


def test_url_without_a_listener_is_named() -> None:
    with socket.socket() as probe:  # bound, so that no process takes it, and not listening
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        problem = lacks(kind="sglang", url=url)
    assert problem.startswith(f"engine.url: {url}")
    assert "start the server, or leave engine.url out" in problem


async def test_only_preemptible_hosts_are_checked() -> None:
    config = Config(engine=Engine(kind="sglang"))
    adapters = RealAdapterFactory()
    assert len(await adapters.unmet("preemptible", config)) == 1
    assert await adapters.unmet("reserved", config) == []
    assert await adapters.unmet("head", config) == []
