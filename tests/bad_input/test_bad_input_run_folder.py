"""Damage in the folder of a run: torn tails are recovered, damaged files are refused by name."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_command import command
from tiny_runs import KilledRun, change_an_event, copy_run, overwrite_the_middle

from gleaner.rlctl.errors import FAILED, USAGE

pytestmark = [pytest.mark.realprocess, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[KilledRun]:
    killed = KilledRun(tmp_path_factory.mktemp("killed"), checkpoint)
    yield killed
    killed.real.close()


@pytest.fixture
def killed(killed_once: KilledRun) -> KilledRun:
    return killed_once.restore()


@pytest.mark.long
def test_torn_tails_and_damaged_newest_checkpoint_cost_nothing(killed: KilledRun) -> None:
    tails = list(killed.path.glob("nodes/**/*.sqlite-wal"))
    assert len(tails) >= 5
    for tail in tails:  # a commit that a kill cut off
        with tail.open("ab") as file:
            file.write(os.urandom(1500))
    with (killed.path / "history.jsonl").open("ab") as file:
        file.write(b'{"kind":"sample","t_s":')
    newest = max(
        (killed.path / "checkpoints").glob("step-" + "[0-9]" * 6)
    )  # not a checkpoint that the kill cut off
    os.truncate(newest / "model.safetensors", 2000)
    killed.real.resume()
    killed.real.ends_whole()
    assert killed.real.report.steps == 6
    assert any(f"passed over: {newest}/model.safetensors has 2000" in text for text in killed.real.warnings())


def test_damaged_manager_journal_is_named_without_a_retry(killed: KilledRun) -> None:
    journal = killed.journal("head", "rollout")
    overwrite_the_middle(journal)
    code, printed = killed.resumed()
    assert code == FAILED
    assert f"journal {journal} is damaged" in printed
    assert "restore it from a copy" in printed
    assert not any("restart 2 of rollout" in text for text in killed.real.warnings())


def test_flipped_bit_in_the_trained_steps_is_named(killed: KilledRun) -> None:
    journal = killed.journal("reserved-1", "agent")
    change_an_event(journal, "training/state")
    code, printed = killed.resumed()
    assert code == FAILED
    assert f"journal {journal} is damaged (event 1 of training/state fails its checksum)" in printed


@pytest.mark.long
def test_run_without_a_whole_checkpoint_does_not_restart(killed: KilledRun) -> None:
    for weights in (killed.path / "checkpoints").glob("step-*/model.safetensors"):
        os.truncate(weights, 2000)  # a checkpoint in removal may have no such file
    code, printed = killed.resumed()
    assert code == FAILED
    assert f"checkpoints in {killed.path / 'checkpoints'} is whole" in printed
    assert "restore one from a copy" in printed


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("history.jsonl", ":2: not a record of a run"),
        ("config.toml", ": not valid TOML"),
    ],
)
def test_damaged_run_file_is_named_by_every_command(killed: KilledRun, file: str, words: str) -> None:
    path = killed.path / file
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, "]garbage[", *rest]) + "\n")
    before = sorted(killed.path.rglob("*"))
    for name, codes in (("resume", {USAGE}), ("report", {FAILED, USAGE}), ("audit", {FAILED, USAGE})):
        ended = command("rlctl", name, str(killed.path))
        assert ended.returncode in codes
        assert f"{path}{words}" in ended.stderr
        assert ended.stderr.startswith("error: ")
        assert "Traceback" not in ended.stderr
    assert sorted(killed.path.rglob("*")) == before


def test_moved_run_is_not_resumed_into_its_old_place(killed: KilledRun, tmp_path: Path) -> None:
    moved = copy_run(killed.path, tmp_path / killed.path.name)
    ended = command("rlctl", "resume", str(moved))
    assert ended.returncode == USAGE
    assert f"was made as {killed.path}" in ended.stderr
