"""Files of a node agent: its address file is valid only while a living agent holds the lock."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from postgres_server import PostgresServer

from gleaner.actors.training.job_journal import BeganIn
from gleaner.nodeagent import files
from gleaner.nodeagent.exit_codes import IN_USE, NO_STATE, NOT_RUNNING, CannotRun, NoSpace
from gleaner.nodeagent.files import (
    AgentFile,
    ProcessFile,
    find_agent,
    forget_old_jobs,
    make_private,
    mark_over,
    publish_agent,
    publish_process,
    withdraw_agent,
)
from gleaner.nodeagent.host import ProcessLocation
from gleaner.nodeagent.host_services import RealHostServices
from gleaner.nodeagent.state_lock import StateLock, is_running
from gleaner.supervisor.journal.port import Journal
from gleaner.supervisor.journal.postgres import PostgresJournal

AGENT = AgentFile(node="n", role="head", endpoint="tcp://127.0.0.1:1", public_key="", pid=os.getpid())


def code_of(state_dir: Path) -> int:
    with pytest.raises(CannotRun) as refused:
        find_agent(state_dir)
    return refused.value.code


def test_agent_is_found_while_it_holds_its_directory(tmp_path: Path) -> None:
    assert code_of(tmp_path) == NOT_RUNNING
    lock = StateLock(tmp_path)
    assert code_of(tmp_path) == NOT_RUNNING  # it has not written its address yet
    publish_agent(tmp_path, AGENT)
    assert find_agent(tmp_path) == AGENT
    withdraw_agent(tmp_path)
    assert code_of(tmp_path) == NOT_RUNNING
    publish_agent(tmp_path, AGENT)
    lock.release()
    assert code_of(tmp_path) == NOT_RUNNING
    assert not is_running(tmp_path)


def test_files_of_a_killed_agent_are_not_reused(tmp_path: Path) -> None:
    publish_agent(tmp_path, AgentFile(node="n", role="head", endpoint="tcp://old:1", public_key="", pid=1))
    lock = StateLock(tmp_path)
    assert code_of(tmp_path) == NOT_RUNNING
    publish_agent(tmp_path, AGENT)
    assert find_agent(tmp_path).endpoint == AGENT.endpoint
    lock.release()


def test_directory_has_one_holder(tmp_path: Path) -> None:
    lock = StateLock(tmp_path)
    with pytest.raises(CannotRun, match=f"pid {os.getpid()}") as refused:
        StateLock(tmp_path)
    assert refused.value.code == IN_USE
    lock.release()
    StateLock(tmp_path).release()


def journals_of(directory: Path, *names: str, over: tuple[str, ...] = ()) -> None:
    """Folders of jobs, the newest first."""
    for age, name in enumerate(names):
        (directory / name).mkdir(parents=True)
        (directory / name / "agent.sqlite").write_text("journal")
        if name in over:
            mark_over(directory / name)
        os.utime(directory / name, ns=(0, (100 - age) * 10**9))


def test_newest_journals_of_ended_jobs_are_kept(tmp_path: Path) -> None:
    journals_of(tmp_path, "newest", "newer", "old", "oldest", over=("newest", "newer", "old", "oldest"))
    (tmp_path / "a file").write_text("stays")
    forget_old_jobs(tmp_path, "newest", count=2)
    assert {path.name for path in tmp_path.iterdir()} == {"newest", "newer", "a file"}


def test_journals_of_an_unfinished_job_are_never_forgotten(tmp_path: Path) -> None:
    journals_of(tmp_path, "now", "a", "b", "killed", "c", "own", over=("a", "b", "c", "own"))
    forget_old_jobs(tmp_path, "own", count=2)
    assert {path.name for path in tmp_path.iterdir()} == {"now", "a", "killed", "own"}
    assert (tmp_path / "killed" / "agent.sqlite").read_text() == "journal"


def test_host_with_too_many_unfinished_jobs_takes_no_other(tmp_path: Path) -> None:
    journals_of(tmp_path, "b", "a", "over", over=("over",))
    with pytest.raises(CannotRun, match=r"2 jobs that are not over.*the oldest is a\)") as refused:
        forget_old_jobs(tmp_path, "new", count=1, most=2)
    assert refused.value.code == NO_STATE
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "over"}, "nothing was removed"
    forget_old_jobs(tmp_path, "a", count=1, most=2)  # one of them may be resumed


def test_private_folder_and_contents_belong_to_its_user(tmp_path: Path) -> None:
    directory, old_mask = tmp_path / "state", os.umask(0o022)
    try:
        (directory / "logs").mkdir(parents=True)
        (directory / "logs" / "old.log").write_text("of an older release")
        (directory / "link").symlink_to(tmp_path)
        outside = tmp_path.stat().st_mode
        make_private(directory)
        make_private(directory)
        (directory / "new").mkdir()
        (directory / "new" / "journal").write_text("a prompt")
    finally:
        os.umask(old_mask)
    modes = {
        path.name: path.stat().st_mode & 0o777
        for path in (directory, *directory.rglob("*"))
        if not path.is_symlink()
    }
    assert modes == {"state": 0o700, "logs": 0o700, "old.log": 0o600, "new": 0o700, "journal": 0o600}
    assert tmp_path.stat().st_mode == outside, "links are not followed"


async def test_database_with_too_many_unfinished_jobs_takes_no_other(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "MOST_UNFINISHED", 2)
    url = postgres.new_database()
    for job in ("a", "b"):
        store = PostgresJournal(url, space=f"{job}/agent")
        try:
            await Journal(store, "training/controller", 1).append(BeganIn(boot=1))
        finally:
            await store.close()
    services, location = RealHostServices(), ProcessLocation("head", "agent", tmp_path, database=url)
    with pytest.raises(CannotRun, match=r"2 jobs that are not over.*the oldest is a\)") as refused:
        await services.open_job_journals(replace(location, job="new"), 0.0)
    assert refused.value.code == NO_STATE
    journal = await services.open_job_journals(replace(location, job="a"), 0.0)  # one of them may be resumed
    await journal.close()


def test_address_on_a_full_disk_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process waits for space where it would otherwise end."""

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_whole", full)
    with pytest.raises(NoSpace, match=r"trainer\.json cannot be written: No space left on device; free"):
        publish_process(tmp_path, "trainer", ProcessFile(endpoint="tcp://1", public_key="", pid=1))
    with pytest.raises(NoSpace, match=r"agent\.json"):
        publish_agent(tmp_path, AGENT)


def test_other_failures_of_an_address_are_raised_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path, data: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(files, "write_whole", read_only)
    with pytest.raises(OSError, match="Read-only file system"):
        publish_agent(tmp_path, AGENT)
