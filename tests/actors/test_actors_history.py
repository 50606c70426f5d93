"""History of a run: it survives kills of its writer and can be followed while it grows."""

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.training.history import (
    MAX_LINE_BYTES,
    End,
    Eval,
    HistoryError,
    HistoryFollower,
    HistoryWriter,
    Node,
    Restart,
    Run,
    Sample,
    Step,
    read_history,
)

RECORDS = [
    Run(t_s=0.0, run_id="r-1", seed=3, steps=2, config={"job": {"name": "x"}}),
    Eval(t_s=0.5, step=0, when="first", reward=0.25, problems=128),
    Node(t_s=1.0, node="spot-1", role="preemptible", event="joined"),
    Sample(
        t_s=1.5, step=1, reserved=1, preemptible=1, serving=2, executing=9, pending=1,
        tokens_collected=10, migrations=0, tokens_per_s=20.0,
    ),
    Step(
        t_s=9.0, step=1, reward=0.5, samples=256, tokens=900, seeding_s=1.0, waiting_s=2.0, training_s=3.0,
        weights_s=0.5, step_s=6.5, t_seed_s=1.5, n_prem=2, grad_norm=0.3, loss=-0.01,
    ),
    Restart(t_s=9.5, actor="trainer", cause="SIGKILL", incarnation=2),
    End(t_s=20.0, tokens_collected=5, tokens_lost=0, tokens_generated_twice=0, requests_migrated=1, ok=True),
]  # fmt: skip


def written(folder: Path) -> Path:
    file = folder / "history.jsonl"
    writer = HistoryWriter(file)
    for record in RECORDS:
        writer.write(record)
    writer.close()
    return file


def test_every_kind_of_record_reads_back_equal(tmp_path: Path) -> None:
    assert read_history(written(tmp_path)) == RECORDS
    first = (tmp_path / "history.jsonl").read_text().splitlines()[0]
    assert first.startswith('{"kind":"run","t_s":0.0,')


def test_record_is_on_disk_before_the_writer_closes(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "h.jsonl")
    writer.write(RECORDS[0])
    assert read_history(tmp_path / "h.jsonl") == RECORDS[:1]
    writer.close()


def test_numbers_that_json_cannot_hold_keep_the_file_valid(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "h.jsonl")
    step = RECORDS[4]
    assert isinstance(step, Step)
    writer.write(msgspec.structs.replace(step, grad_norm=math.nan, loss=math.inf))
    with pytest.raises(HistoryError, match="cannot be read back"):
        writer.write(msgspec.structs.replace(step, step_s=math.nan))
    writer.close()
    (kept,) = read_history(tmp_path / "h.jsonl")
    assert kept == msgspec.structs.replace(step, grad_norm=None, loss=None)


def test_torn_last_line_is_dropped_by_the_next_writer(tmp_path: Path) -> None:
    file = written(tmp_path)
    with file.open("ab") as handle:
        handle.write(b'{"kind":"eval","t_s":99')
    assert read_history(file) == RECORDS
    writer = HistoryWriter(file)
    assert writer.last_t_s == 20.0
    writer.write(RECORDS[1])
    writer.close()
    assert read_history(file) == [*RECORDS, RECORDS[1]]


def test_follower_sees_each_record_once_despite_torn_lines(tmp_path: Path) -> None:
    whole = written(tmp_path).read_bytes()
    growing = tmp_path / "growing.jsonl"
    follower = HistoryFollower(growing)
    assert follower.poll() == []
    seen = []
    for end in range(0, len(whole) + 1, 37):
        growing.write_bytes(whole[:end])
        seen += follower.poll()
    growing.write_bytes(whole)
    seen += follower.poll()
    assert seen == RECORDS
    assert follower.poll() == []


@pytest.mark.parametrize(
    "line", [b"{}", b"nonsense", b'{"kind":"unknown","t_s":1}', b'{"kind":"eval","t_s":"x"}', b"\xff"]
)
def test_damaged_line_is_refused_with_its_number(tmp_path: Path, line: bytes) -> None:
    file = written(tmp_path)
    file.write_bytes(file.read_bytes() + line + b"\n")
    for reader in (read_history, HistoryWriter):
        with pytest.raises(HistoryError, match=r"history\.jsonl:8: not a record"):
            reader(file)


def test_missing_file_and_endless_line_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="no such file"):
        read_history(tmp_path / "none.jsonl")
    endless = tmp_path / "endless.jsonl"
    endless.write_bytes(b"x" * (MAX_LINE_BYTES + 1))
    with pytest.raises(HistoryError, match="beyond"):
        read_history(endless)


@given(cut=st.integers(0, 10_000))
def test_killed_writer_leaves_a_history_of_whole_records(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    file = written(folder)
    file.write_bytes(file.read_bytes()[: cut % (file.stat().st_size + 1)])
    HistoryWriter(file).close()
    kept = read_history(file)
    assert kept == RECORDS[: len(kept)]
    assert file.read_bytes().count(b"\n") == len(kept)
