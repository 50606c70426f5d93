"""Host checks of `rlctl doctor`: installed parts, missing parts and what to do.

Owns the checks; each gives a row with a verdict and what to do. Changes nothing, and needs no run.
"""

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import zmq

from gleaner.actors.cluster.job import SHARED_MEMORY
from gleaner.actors.reward.sandbox.detection import NoSandbox, detect
from gleaner.actors.reward.verifiers import compilers
from gleaner.nodeagent.inventory import take_inventory
from gleaner.rlctl.preflight import size

Verdict = Literal["ok", "warn", "missing"]

LEAST_PYTHON = (3, 11)
LEAST_MEMORY_BYTES = 4 << 30  # seven processes, two of them with torch
LEAST_SHARED_BYTES = 64 << 20
LEAST_DISK_BYTES = 1 << 30
LEAST_FILES = 1024  # sockets and journals of a process; a head of a hundred hosts wants 4096
WANTED_FILES = 4096
LEAST_YEAR = 2024  # an earlier clock was never set, and incarnations come from the clock
PROBE_S = 20.0  # one probe in a process of its own; importing torch from a cold disk takes most of it


@dataclass(frozen=True, slots=True)
class Row:
    """One finding. todo: what to do where it is not ok."""

    what: str
    verdict: Verdict
    found: str
    todo: str = ""


def examine(folder: Path) -> list[Row]:
    """Every check; folder: where runs would be."""
    checks: list[Callable[[], Iterator[Row]]] = [
        _python,
        _packages,
        _zeromq,
        _torch,
        _gpus,
        _memory,
        lambda: _disk(folder),
        _limits,
        _kernel,
        _isolation,
        _compilers,
        _network,
        _clock,
    ]
    return [row for check in checks for row in check()]


def _python() -> Iterator[Row]:
    version = ".".join(map(str, sys.version_info[:3]))
    fine = sys.version_info >= LEAST_PYTHON
    yield Row("python", "ok" if fine else "missing", version, "" if fine else "install Python 3.11 or newer")


def _packages() -> Iterator[Row]:
    for name, least in required_packages():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Row(name, "missing", "not installed", f"pip install '{name}>={least}', or make run")
            continue
        fine = _numbers(version) >= _numbers(least)
        yield Row(name, "ok" if fine else "warn", version, "" if fine else f"pip install '{name}>={least}'")
    for extra, module in (("sglang", "sglang"), ("megatron", "megatron")):
        there = importlib.util.find_spec(module) is not None
        yield Row(
            f"extra {extra}",
            "ok",
            "installed" if there else f"not installed (pip install 'gleaner[{extra}]')",
        )


def required_packages() -> list[tuple[str, str]]:
    """(name, minimum version) of the package's requirements, read from its metadata or pyproject.toml."""
    try:
        wanted = importlib.metadata.requires("gleaner") or []
    except importlib.metadata.PackageNotFoundError:
        file = Path(__file__).resolve().parent.parent / "pyproject.toml"
        wanted = tomllib.loads(file.read_text())["project"]["dependencies"] if file.exists() else []
    found = (
        re.match(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)", text) for text in wanted if "extra ==" not in text
    )
    return [(match[1], match[2]) for match in found if match]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def _zeromq() -> Iterator[Row]:
    curve, ipc = zmq.has("curve"), zmq.has("ipc")
    todo = "" if curve and ipc else "install pyzmq from PyPI: its wheels have both"
    found = f"libzmq {zmq.zmq_version()}, curve {'yes' if curve else 'no'}, ipc {'yes' if ipc else 'no'}"
    yield Row("zeromq", "ok" if curve and ipc else "missing", found, todo)


def _torch() -> Iterator[Row]:
    code = (
        "import torch; print(torch.__version__, 'threads', torch.get_num_threads(), "
        "'cuda', torch.cuda.device_count() if torch.cuda.is_available() else 'no', "
        "'gloo', 'yes' if torch.distributed.is_gloo_available() else 'no: one trainer process only')"
    )
    found, fine = _probe([sys.executable, "-c", code])
    yield Row(
        "torch runs", "ok" if fine else "missing", found, "" if fine else "reinstall torch: make run does"
    )


def _gpus() -> Iterator[Row]:
    gpus = take_inventory().gpus
    yield Row("gpu", "ok", ", ".join(gpus) or "none: everything runs on the CPU")


def _memory() -> Iterator[Row]:
    memory = psutil.virtual_memory()
    fine = memory.available >= LEAST_MEMORY_BYTES
    yield Row(
        "memory",
        "ok" if fine else "warn",
        f"{size(memory.available)} available of {size(memory.total)}, {psutil.cpu_count()} cores",
        "" if fine else f"close something: the quickstart wants {size(LEAST_MEMORY_BYTES)}",
    )
    if not SHARED_MEMORY.is_dir():
        yield Row("shared memory", "missing", f"no {SHARED_MEMORY}", f"mount -t tmpfs tmpfs {SHARED_MEMORY}")
        return
    free = shutil.disk_usage(SHARED_MEMORY).free
    left = sorted(path.name for path in SHARED_MEMORY.glob("gleaner-*"))
    todo = "`rlctl weights clean --dry-run` lists those of dead runs" if left else ""
    if free < LEAST_SHARED_BYTES:
        todo = todo or "in a container: --shm-size 1g"
    verdict: Verdict = "missing" if free < LEAST_SHARED_BYTES else "warn" if left else "ok"
    also = f", {len(left)} folders of runs" if left else ""
    yield Row("shared memory", verdict, f"{size(free)} free in {SHARED_MEMORY}{also}", todo)


def _disk(folder: Path) -> Iterator[Row]:
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    writable = os.access(place, os.W_OK)
    fine = writable and free >= LEAST_DISK_BYTES
    found = f"{size(free)} free in {place}{'' if writable else ', not writable'}"
    verdict: Verdict = "ok" if fine else "warn" if writable else "missing"
    yield Row("disk", verdict, found, "" if fine else "free space, or use --runs-dir")


def _limits() -> Iterator[Row]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    verdict: Verdict = "ok" if soft >= WANTED_FILES else "warn" if soft >= LEAST_FILES else "missing"
    todo = "" if verdict == "ok" else f"ulimit -n {min(WANTED_FILES, hard) if hard > 0 else WANTED_FILES}"
    yield Row("open files", verdict, f"{soft} (hard limit {hard})", todo)


def _kernel() -> Iterator[Row]:
    if not sys.platform.startswith("linux"):
        yield Row("kernel", "missing", sys.platform, "use Linux: processes die with their parents there")
        return
    works = ctypes.CDLL(None).prctl(2, ctypes.byref(ctypes.c_int()), 0, 0, 0) == 0  # PR_GET_PDEATHSIG
    pidfd = hasattr(os, "pidfd_open")
    fine = works and pidfd
    found = (
        f"{os.uname().release}, death signals {'yes' if works else 'no'}, pidfd {'yes' if pidfd else 'no'}"
    )
    yield Row("kernel", "ok" if fine else "missing", found, "" if fine else "Linux 5.3 or newer is needed")


def _isolation() -> Iterator[Row]:
    yield _sandbox()
    ip = shutil.which("ip")
    found, fine = _probe(["unshare", "--net", "true"]) if shutil.which("unshare") else ("no unshare", False)
    fine = fine and ip is not None
    yield Row(
        "network namespaces",
        "ok" if fine else "warn",
        "may be made" if fine else found or ("no ip command" if ip is None else "may not be made"),
        ""
        if fine
        else "only tests of several hosts on one machine want them: apt install iproute2, run as root",
    )


def _sandbox() -> Row:
    """The isolation that works for model-written programs, found by running a program in it."""
    try:
        host = detect()
    except NoSandbox as problem:
        return Row("sandbox", "missing", str(problem), "apt install bubblewrap, or Linux 5.13 with Landlock")
    found = f"{host.isolation.value}, Landlock {host.landlock or 'no'}"
    if host.better:
        return Row("sandbox", "ok", f"{found} (not better: {host.better})", "")
    return Row("sandbox", "ok", found)


def _compilers() -> Iterator[Row]:
    """The compilers that verifier `code` knows; only tasks in their languages need them."""
    for language in compilers.LANGUAGES:
        try:
            yield Row(f"compiler {language}", "ok", compilers.version(language))
        except compilers.NoCompiler as problem:
            text = f"{problem} (only tasks in {language} need it)"
            yield Row(f"compiler {language}", "ok", text)


def _network() -> Iterator[Row]:
    try:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            second.bind(("127.0.0.1", 0))
            found = f"loopback binds, for example port {first.getsockname()[1]}"
    except OSError as problem:
        yield Row("ports", "missing", str(problem), "bring loopback up: ip link set lo up")
    else:
        yield Row("ports", "ok", found)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as local:
        try:
            local.bind(str(Path(folder) / "s"))
        except OSError as problem:
            yield Row("local sockets", "warn", str(problem), "set TMPDIR to a short path on a local disk")


def _clock() -> Iterator[Row]:
    fine = time.localtime().tm_year >= LEAST_YEAR
    found = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    yield Row("clock", "ok" if fine else "warn", found, "" if fine else "set it: incarnations come from it")


def _probe(argv: list[str]) -> tuple[str, bool]:
    """Output of a command, and whether it succeeded within `PROBE_S`."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem), False
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return (lines[-1] if lines else ""), done.returncode == 0
