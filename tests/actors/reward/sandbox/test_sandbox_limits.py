"""Limits of a program in the sandbox, the status of its end, and the cleanup after it."""

import json
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import sandbox_users

from gleaner.actors.reward.sandbox import host_end, wire
from gleaner.actors.reward.sandbox.detection import NoSandbox, detect
from gleaner.actors.reward.sandbox.host_end import HostSandbox
from gleaner.actors.reward.sandbox.port import Isolation, Limits, Outcome, Status, Work
from gleaner.actors.reward.sandbox.program_pipes import RunningProgram
from gleaner.actors.reward.verdicts import OURS, OVERLOADED, PROGRAMS, of_failure

HERE = str(Path(__file__).parent)
SMALL = Limits(cpu_s=1.0, wall_s=60.0, memory_bytes=128 * 2**20, tmp_bytes=8 * 2**20)
SLEEPS = replace(SMALL, wall_s=0.5)


LEAVES = ("leaves_files", "leaves_deep_folders", "leaves_locked_folders")


@pytest.fixture(scope="module", params=[mode.value for mode in Isolation])
def sandbox(request: pytest.FixtureRequest) -> Iterator[HostSandbox]:
    try:
        host = detect(request.param)
    except NoSandbox as problem:
        pytest.skip(str(problem))
    made = HostSandbox(host, ["escapes"], path=[HERE])
    yield made
    made.close()


def run(sandbox: HostSandbox, name: str, payload: bytes = b"", limits: Limits = SMALL) -> Outcome:
    return sandbox.run(Work(function=f"escapes:{name}", payload=payload, limits=limits))


ENDS = [
    ("endless_loop", SMALL, {Status.TIMEOUT}, "processor time"),
    ("many_processes_compute", SMALL, {Status.TIMEOUT}, "processor time"),
    ("sleeps", SLEEPS, {Status.TIMEOUT}, "still running after 0.5 s"),
    ("stops_itself", SLEEPS, {Status.TIMEOUT}, "still running after 0.5 s"),
    ("memory", SMALL, {Status.MEMORY}, ""),
    ("memory_of_many", SMALL, {Status.MEMORY}, "bytes of memory"),
    ("stack", SMALL, {Status.MEMORY, Status.CRASHED, Status.TIMEOUT}, ""),
    ("flood", SMALL, {Status.OUTPUT}, "bytes of output"),
    ("flood_stderr", SMALL, {Status.OUTPUT}, "bytes of output"),
    ("flood_result", SMALL, {Status.OUTPUT}, "bytes of output"),
    ("long_result", SMALL, {Status.OUTPUT}, "a result of more than"),
    ("large_file", SMALL, {Status.CRASHED, Status.OUTPUT}, ""),
    ("many_files", SMALL, {Status.CRASHED, Status.OUTPUT}, ""),
    ("many_empty_files", SMALL, {Status.CRASHED, Status.OUTPUT}, ""),
    ("segfault", SMALL, {Status.CRASHED}, "SIGSEGV"),
    ("dumps_core", SMALL, {Status.CRASHED}, ""),
    ("exits_well", SMALL, {Status.CRASHED}, "no result"),
    ("exits_hard", SMALL, {Status.CRASHED}, "no result"),
    ("half_a_frame", SMALL, {Status.CRASHED}, "no result"),
    ("frame_and_more", SMALL, {Status.CRASHED}, "no result"),
    ("closes_result", SMALL, {Status.CRASHED}, "Bad file descriptor"),
    ("daemon_and_exit", SMALL, {Status.CRASHED}, "no result"),
]


@pytest.mark.parametrize(("name", "limits", "statuses", "words"), ENDS, ids=[name for name, *_ in ENDS])
def test_program_end_has_a_name_and_next_one_runs(
    sandbox: HostSandbox, name: str, limits: Limits, statuses: set[Status], words: str
) -> None:
    outcome = run(sandbox, name, limits=limits)
    assert outcome.status in statuses, outcome
    assert words in outcome.detail
    assert outcome.result == b""
    assert run(sandbox, "finds_files").result == b"[]"


@pytest.mark.parametrize(
    "places",
    # by day both at once: a time that has the one or the other is too long there too
    [
        pytest.param(["start"], marks=pytest.mark.long),
        pytest.param(["end"], marks=pytest.mark.long),
        ["start", "end"],
    ],
    ids="-".join,
)
def test_time_of_a_program_has_none_of_its_start_and_end(sandbox: HostSandbox, places: list[str]) -> None:
    slow = HostSandbox(sandbox._host, ["escapes", ("escapes:waits_at", places)], path=[HERE])
    limits = replace(SMALL, wall_s=0.3)
    outcome = run(slow, "guesses", limits=limits)
    assert outcome.status is Status.OK, outcome
    sleeps = run(slow, "sleeps", limits=limits)
    assert sleeps.detail == "still running after 0.3 s"
    slow.close()


@pytest.mark.parametrize("name", ["forks", "threads", "descriptors_used_up"])
def test_program_gets_no_more_than_its_limit(sandbox: HostSandbox, name: str) -> None:
    outcome = run(sandbox, name)
    assert outcome.status in (Status.OK, Status.CRASHED), outcome
    assert int(outcome.result or b"0") <= 64


@pytest.mark.parametrize("leaves", LEAVES)
def test_leftovers_are_removed_before_the_next_program(sandbox: HostSandbox, leaves: str) -> None:
    outcome = run(sandbox, leaves)
    assert (outcome.status, outcome.result) == (Status.OK, b"left"), outcome
    assert run(sandbox, "finds_files").result == b"[]"


@pytest.mark.parametrize("mode", list(Isolation))
def test_leftovers_of_any_user_are_removed(mode: Isolation) -> None:
    try:
        detect(mode.value)
    except NoSandbox as problem:
        pytest.skip(str(problem))
    names = [name for leaves in LEAVES for name in (leaves, "finds_files")]
    tasks = json.dumps([[name, "", {}] for name in names])
    trials = [sys.executable, str(Path(HERE) / "trials.py"), mode.value]
    found = json.loads(sandbox_users.run(sandbox_users.USERS[-1], trials, tasks))
    assert [one["result"] for one in found] == ["left", "[]"] * len(LEAVES), found


def test_each_program_has_its_own_random_numbers(sandbox: HostSandbox) -> None:
    assert len({run(sandbox, "guesses").result for _ in range(4)}) == 4


def test_no_process_outlives_its_program(sandbox: HostSandbox) -> None:
    assert run(sandbox, "exits_well").status is Status.CRASHED
    before = sorted(process.pid for process in psutil.Process().children(recursive=True))
    for name in ("daemon", "daemon_and_exit", "forks", "memory_of_many"):
        run(sandbox, name)
    after = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    assert after == []


def test_many_programs_leave_nothing_behind(sandbox: HostSandbox) -> None:
    """`bench/sandbox.py` does the same with 100,000 programs."""
    run(sandbox, "finds_files")
    open_before, left_before = len(os.listdir("/proc/self/fd")), leftovers(sandbox)
    for number in range(60):
        run(sandbox, ("finds_files", "daemon_and_exit", "leaves_files")[number % 3])
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert leftovers(sandbox) == left_before


def leftovers(sandbox: HostSandbox) -> list[str]:
    return sorted(os.listdir(sandbox._tmp)) if sandbox._tmp else []


def test_killed_sandbox_is_our_failure_and_is_replaced(
    sandbox: HostSandbox,
) -> None:
    assert run(sandbox, "finds_files").status is Status.OK
    process = sandbox._process
    assert process is not None
    process.kill()
    process.wait()
    assert run(sandbox, "finds_files").status is Status.SANDBOX_FAILED
    assert run(sandbox, "finds_files").status is Status.OK


def test_sandbox_is_replaced_after_max_programs(sandbox: HostSandbox) -> None:
    small = HostSandbox(sandbox._host, ["escapes"], path=[HERE], max_programs=2)
    pids = []
    for _ in range(5):
        assert run(small, "finds_files").status is Status.OK
        assert small._process is not None
        pids.append(small._process.pid)
    small.close()
    assert [pids[0], pids[2], pids[4]] == list(dict.fromkeys(pids))


def ask(sandbox: HostSandbox, payload: bytes) -> Outcome:
    return sandbox.ask(Work(function="escapes:remembers", payload=payload, limits=MANY, each_s=1.0))


MANY = replace(SMALL, cpu_s=600.0, wall_s=600.0)


def test_resident_program_handles_payloads_in_turn(sandbox: HostSandbox) -> None:
    assert [ask(sandbox, b"x" * 300_000).result for _ in range(3)] == [b"1", b"2", b"3"]
    assert run(sandbox, "finds_files").result == b"[]"
    assert ask(sandbox, b"").result == b"1", "another program came in between: it was ended"


@pytest.mark.parametrize(
    ("payload", "status"), [(b"loop", Status.TIMEOUT), (b"exit", Status.CRASHED), (b"flood", Status.OUTPUT)]
)
def test_ended_resident_program_is_reported_and_replaced(
    sandbox: HostSandbox, payload: bytes, status: Status
) -> None:
    ask(sandbox, b"")
    ended = ask(sandbox, payload)
    assert (ended.status, ended.result) == (status, b""), ended
    assert ask(sandbox, b"").result == b"1"


def test_resident_program_is_replaced_after_max_payloads(
    sandbox: HostSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_end, "MAX_ASKED", 2)
    run(sandbox, "finds_files")
    assert [ask(sandbox, b"").result for _ in range(5)] == [b"1", b"2", b"1", b"2", b"1"]


def test_missing_program_is_our_failure(sandbox: HostSandbox) -> None:
    outcome = run(sandbox, "no_such_program")
    assert outcome.status is Status.SANDBOX_FAILED
    assert "no_such_program" in outcome.detail


def test_failing_import_of_a_sandbox_is_named(sandbox: HostSandbox) -> None:
    broken = HostSandbox(sandbox._host, ["no_such_module_of_ours"])
    outcome = broken.run(Work(function="escapes:finds_files", payload=b""))
    assert outcome.status is Status.SANDBOX_FAILED
    assert "no_such_module_of_ours" in outcome.detail


def test_sandbox_that_prints_much_while_preparing_starts(sandbox: HostSandbox) -> None:
    prints = HostSandbox(sandbox._host, [("escapes:prints", 2**20)], path=[HERE])
    try:
        assert prints.run(Work(function="escapes:finds_files", payload=b"")).status is Status.OK
    finally:
        prints.close()


def test_program_without_a_processor_is_our_failure() -> None:
    ours, zygotes = socket.socketpair()
    with ours, zygotes:
        running = RunningProgram(ours, Work(function="escapes:finds_files", payload=b""))
        _, _, fds = wire.receive(zygotes)
        wire.send(zygotes, {"why": "starved", "status": 9, "cpu_s": 0.1, "wall_s": 200.0})
        outcome = running.finish()
        running.close()
        for fd in fds:
            os.close(fd)
    assert outcome.status is Status.OVERLOADED
    assert of_failure(outcome).status in OURS
    assert OVERLOADED not in PROGRAMS


def test_empty_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="cpu_s, processes"):
        Limits(cpu_s=0, processes=-1)


def test_folder_of_a_dead_owner_is_removed() -> None:
    import subprocess

    program = "from gleaner.actors.reward.sandbox import folders; print(folders.make()[0], flush=True)"
    died = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    orphan = Path(died.stdout.strip())
    assert orphan.is_dir()
    from gleaner.actors.reward.sandbox import folders

    folder, held = folders.make()
    assert not orphan.exists()
    assert Path(folder).is_dir()
    folders.remove(folder, held)
    assert not Path(folder).exists()
