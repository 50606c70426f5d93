"""Escapes from the sandbox: refused in every mode and for every user, possible without the sandbox."""

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import escapes
import pytest
import sandbox_users
from sandbox_users import NOBODY, USERS

from gleaner.actors.reward.sandbox.detection import NoSandbox, detect
from gleaner.actors.reward.sandbox.port import Isolation

TRIALS = str(Path(__file__).with_name("trials.py"))
DEVICES = "devices"
MODES = [*(mode.value for mode in Isolation), DEVICES]
SECRET = "the secret of the host"

ALWAYS_REFUSED = {
    "clock",
    "bpf",
    "old_calls",
    "signal_parent",
    "clone3",
    "terminal",
    "performance",
    "userfault",
    "io_uring",
}
"""Attempts without a control: kernels refuse some of these to all users, one would set the host's clock."""
ROOT_ONLY = {
    "hardlink_out",
    "mount",
    "other_user",
    "change_root",
    "keyring",
    "write_interpreter",
    "passwords",
}
"""Attempts that an unprivileged user or this machine may be refused without a sandbox as well."""


@dataclass(frozen=True)
class World:
    """Targets outside of the sandbox."""

    facts: dict[str, object]
    user: str

    def results(self, mode: str, tasks: list[list[object]]) -> list[dict[str, object]]:
        out = sandbox_users.run(
            self.user, [sys.executable, TRIALS, mode], json.dumps(tasks), GLEANER_TEST_SECRET=SECRET
        )
        found: list[dict[str, object]] = json.loads(out)
        return found

    def attempts(self, mode: str, names: list[str]) -> dict[str, str]:
        facts_text = json.dumps(self.facts)
        found = self.results(mode, [["attempt", f"{name} {facts_text}", {}] for name in names])
        return {
            name: str(one["result"]) or f"ended: {one['status']}: {one['detail']}"
            for name, one in zip(names, found, strict=True)
        }


def answering(listener: socket.socket) -> None:
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        with contextlib.suppress(OSError), peer:
            peer.sendall(b"hello")


@pytest.fixture(scope="module", params=USERS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    user: str = request.param
    folder = Path("/var/tmp") / f"gleaner-escapes-{os.getpid()}-{user}"  # every user can reach it
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o644)
    own = folder / "own"
    own.write_text("a file of the user's")
    if user == "nobody":
        os.chown(own, NOBODY, NOBODY)
    victim = subprocess.Popen(sandbox_users.command(user, ["sleep", "600"]))
    unix, abstract = folder / "socket", f"gleaner-{os.getpid()}-{user}"
    listeners = [socket.socket(), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    for listener, address in zip(listeners, (("127.0.0.1", 0), str(unix), "\0" + abstract), strict=True):
        listener.bind(address)
        listener.listen()
        threading.Thread(target=answering, args=(listener,), daemon=True).start()
    unix.chmod(0o777)
    libc = ctypes.CDLL(None)
    shm = libc.shmget(0, 4096, 0o1000 | 0o666)
    yield World(
        {
            "secret": str(secret),
            "folder": str(folder),
            "own": str(own),
            "victim": victim.pid,
            "port": listeners[0].getsockname()[1],
            "unix": str(unix),
            "abstract": abstract,
            "shm": shm,
        },
        user,
    )
    libc.shmctl(shm, 0, None)
    victim.kill()
    victim.wait()
    for listener in listeners:
        listener.close()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def needs(mode: str) -> None:
    try:
        detect(Isolation.NAMESPACES.value if mode == DEVICES else mode)
    except NoSandbox as problem:
        pytest.skip(str(problem))


@pytest.mark.parametrize("mode", MODES)
def test_every_escape_is_refused(world: World, mode: str) -> None:
    needs(mode)
    found = world.attempts(mode, list(escapes.REFUSED))
    reached = {name for name, result in found.items() if result.startswith("got: ")}
    assert reached == ({"proc_folder"} if mode == DEVICES else set())
    found = {name: result for name, result in found.items() if name not in reached}
    unexpected = {
        name: result
        for name, result in found.items()
        if not result.startswith("refused: ") and name not in ("old_calls", "terminal")
    }
    assert unexpected == {}


def test_every_escape_succeeds_without_a_sandbox(world: World) -> None:
    controlled = [name for name in escapes.REFUSED if name not in ALWAYS_REFUSED]
    if world.user != "root":
        controlled = [name for name in controlled if name not in ROOT_ONLY]
    found = world.attempts("none", controlled)
    assert {name: result for name, result in found.items() if not result.startswith("got: ")} == {}
    assert found["environment"] == f"got: {SECRET}"
    assert found.get("include_in_source", "got: the secret") == "got: the secret"
