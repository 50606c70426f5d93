"""How a node agent is found: by a file that only a living agent's lock makes true."""

import os
from pathlib import Path

import pytest

from nodeagent.exit_codes import IN_USE, NOT_RUNNING, CannotRun
from nodeagent.files import (
    AgentFile,
    StateLock,
    find_agent,
    is_running,
    keep_newest,
    make_private,
    publish_agent,
    withdraw_agent,
)

AGENT = AgentFile(node="n", role="head", endpoint="tcp://127.0.0.1:1", public_key="", pid=os.getpid())


def code_of(state_dir: Path) -> int:
    with pytest.raises(CannotRun) as refused:
        find_agent(state_dir)
    return refused.value.code


def test_an_agent_is_found_while_it_holds_its_directory_and_no_longer(tmp_path: Path) -> None:
    assert code_of(tmp_path) == NOT_RUNNING
    lock = StateLock(tmp_path)
    assert code_of(tmp_path) == NOT_RUNNING  # it has not said yet where it is
    publish_agent(tmp_path, AGENT)
    assert find_agent(tmp_path) == AGENT
    withdraw_agent(tmp_path)
    assert code_of(tmp_path) == NOT_RUNNING
    publish_agent(tmp_path, AGENT)
    lock.release()
    assert code_of(tmp_path) == NOT_RUNNING
    assert not is_running(tmp_path)


def test_what_a_killed_agent_left_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    publish_agent(tmp_path, AgentFile(node="n", role="head", endpoint="tcp://old:1", public_key="", pid=1))
    lock = StateLock(tmp_path)
    assert code_of(tmp_path) == NOT_RUNNING
    publish_agent(tmp_path, AGENT)
    assert find_agent(tmp_path).endpoint == AGENT.endpoint
    lock.release()


def test_a_directory_has_one_holder(tmp_path: Path) -> None:
    lock = StateLock(tmp_path)
    with pytest.raises(CannotRun, match=f"pid {os.getpid()}") as refused:
        StateLock(tmp_path)
    assert refused.value.code == IN_USE
    lock.release()
    StateLock(tmp_path).release()


def test_of_old_folders_the_newest_are_kept(tmp_path: Path) -> None:
    for age, name in enumerate(["newest", "newer", "old", "oldest"]):
        (tmp_path / name / "inside").mkdir(parents=True)
        os.utime(tmp_path / name, ns=(0, (10 - age) * 10**9))
    (tmp_path / "a file").write_text("stays")
    keep_newest(tmp_path, 2)
    assert {path.name for path in tmp_path.iterdir()} == {"newest", "newer", "a file"}


def test_a_private_folder_and_what_is_made_in_it_are_for_its_user_alone(tmp_path: Path) -> None:
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
