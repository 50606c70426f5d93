"""Orphans: proof that a run left nothing on this machine.

Nothing means no process, no shared memory, no open port, no file that names a process. Owns the search; kills
nothing.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil

from gleaner.nodeagent.files import PROCESSES
from gleaner.nodeagent.state_lock import AGENT_FILE, LOCK_FILE
from gleaner.rlctl.head import remains
from gleaner.rlctl.runs import RunDir

_LISTENS = re.compile(r"listens at tcp://(\S+):(\d+)")


def left_behind(run: RunDir) -> list[str]:
    """Remains of a run, as texts; empty when it is wholly gone."""
    found = {process.pid: process for process in [*remains(run), *naming(run.path)]}
    return [
        *map(_describe, found.values()),
        *(f"shared memory {path}" for path in run.memory()),
        *(f"port {port}" for port in open_ports(run.path)),
        *(f"file {path}" for path in stale_files(run.path)),
    ]


def open_ports(root: Path) -> list[str]:
    """Addresses at which a process listens, of those that a log below `root` names."""
    reported = {
        (host.strip("[]"), int(port))
        for log in root.rglob("logs/*.log")
        for host, port in _LISTENS.findall(log.read_text(errors="replace"))
    }
    listening = {
        connection.laddr[:2]
        for connection in psutil.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    return sorted(f"{host}:{port}" for host, port in reported & listening)


def stale_files(root: Path) -> list[Path]:
    """Files below `root` that name the address of a process."""
    processes = root.rglob(f"{PROCESSES}/*.json")
    locks = [path for path in root.rglob(LOCK_FILE) if path.stat().st_size]
    return sorted([*root.rglob(AGENT_FILE), *processes, *locks])


def naming(folder: Path) -> Iterator[psutil.Process]:
    """Processes whose command line names a folder, this one and its parents excepted."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            named = any(str(folder) in argument for argument in process.cmdline())
            if named and process.pid not in own and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _describe(process: psutil.Process) -> str:
    command = "?"
    with contextlib.suppress(psutil.Error):
        command = " ".join(process.cmdline())[:200]
    return f"process {process.pid}: {command}"
