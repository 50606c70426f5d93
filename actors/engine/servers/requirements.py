"""Engine requirements of a preemptible host: a server's environment, or a server.

Owns the check, and its wording. Adapter: starts the environment's interpreter once, or queries the server
once. Nothing of the server is imported, because that takes ten seconds and more; a broken installation shows
at its start.
"""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec

from gleaner.configs.schema import Engine

LOOK_S = 60.0
"""Time for the interpreter to report the installed packages; on a cold disk under load that takes seconds."""
MAX_WORDS = 20
"""Lines kept of a broken interpreter's output; its end explains most."""
OLDEST = {"sglang": (0, 5, 20), "vllm": (0, 30, 0)}
"""Older releases lack routes or settings that we use; docs/engines.md lists the tested ones."""
VLLM_PLUGIN = "gleaner"
"""Entry point of our plug-in (`vllm_plugin`)."""
_PROGRAM = """
import importlib.metadata as metadata, importlib.util, json, sys
name = sys.argv[1]
there = importlib.util.find_spec(name) is not None
names = (metadata.packages_distributions().get(name) or [name]) if there else []
try:
    version = metadata.version(names[0]) if names else ""
except metadata.PackageNotFoundError:
    version = ""
plugins = [point.name for point in metadata.entry_points(group="vllm.general_plugins")]
print(json.dumps({"there": there, "version": version, "plugins": plugins}))
"""


class _Found(msgspec.Struct):
    """The server packages of an environment. version: "" if it is not given."""

    there: bool
    version: str
    plugins: list[str]


def unmet(engine: Engine) -> list[str]:
    """A complete message for each requirement of the engine that this machine lacks. May take seconds."""
    if engine.kind == "builtin":
        return []
    if engine.url:
        return _server(engine)
    return _environment(engine)


async def unmet_here(engine: Engine) -> list[str]:
    """The same, beside a loop."""
    return await asyncio.to_thread(unmet, engine)


def _environment(engine: Engine) -> list[str]:
    home = Path(engine.environment) if engine.environment else None
    interpreter = home / "bin" / "python" if home is not None else Path(sys.executable)
    where = f"engine.environment {engine.environment}" if home is not None else f"{interpreter}"
    make = f"`make engine-{engine.kind}` makes one (docs/engines.md)"
    if home is not None and not home.is_dir():
        return [f"{where}: no such folder; {make}"]
    if not interpreter.exists():
        return [f"{where}: has no bin/python, so it is no virtual environment; {make}"]
    try:
        done = subprocess.run(
            [str(interpreter), "-c", _PROGRAM, engine.kind],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LOOK_S,
            check=True,
            cwd="/",  # the working directory is searched for packages too
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        found = msgspec.json.decode(done.stdout.strip().rpartition("\n")[2], type=_Found)
    except OSError as problem:
        return [f"{where}: its interpreter cannot be started: {problem.strerror}; {make}"]
    except subprocess.TimeoutExpired:
        return [f"{where}: its interpreter did not answer within {LOOK_S:g} s"]
    except subprocess.CalledProcessError as ended:
        output = " ".join(ended.stderr.split()[-MAX_WORDS:]) or "no output"
        return [f"{where}: its interpreter ended with {ended.returncode}: {output}; {make}"]
    except msgspec.MsgspecError as problem:
        return [f"{where}: its interpreter does not list what is installed: {problem}; {make}"]
    return _installed(engine.kind, where, found)


def _installed(kind: str, where: str, found: _Found) -> list[str]:
    if not found.there:
        return [
            f"{where}: engine.kind is {kind}, and {kind} is not installed there; install it "
            f"(`make engine-{kind}`), or name its environment with engine.environment"
        ]
    release = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(?!.*dev)", found.version)  # none of a build from sources
    if release is not None and tuple(int(part or 0) for part in release.groups()) < OLDEST[kind]:
        oldest = ".".join(map(str, OLDEST[kind]))
        return [f"{where}: {kind} {found.version} is too old, {oldest} and newer are known; update it"]
    if kind == "vllm" and VLLM_PLUGIN not in found.plugins:
        return [
            f"{where}: vllm has no plug-in of Gleaner; install it with that environment's python -m pip "
            f"install --no-deps {Path(__file__).parent.with_name('vllm_plugin')}"
        ]
    return []


def _server(engine: Engine) -> list[str]:
    from gleaner.actors.engine.servers.server_facts import NoServer, look  # with an HTTP client

    try:
        facts = asyncio.run(look(engine.url))
    except NoServer as problem:
        return [
            f"engine.url: {problem}; start the server, or leave engine.url out: each instance then starts one"
        ]
    if facts.kind != engine.kind:
        return [f"engine.url {engine.url}: is {facts.kind}, engine.kind is {engine.kind}; correct one"]
    return []
