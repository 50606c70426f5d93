"""Traces of reward computations: read as they were written, and refused with file and line."""

from pathlib import Path

import pytest

from gleaner.actors.reward.planning.items import Stage
from gleaner.rlctl.reward_trace import TraceError, read_trace, write_trace
from gleaner.sim.rewards.workload import CudaLaw, cuda_workload

HEAD = "job,batch,arrival_s,compile,run\n"


def test_written_trace_is_read_as_the_same_workload(tmp_path: Path) -> None:
    workload = cuda_workload(2, 2, CudaLaw(items=50), seed=5)
    write_trace(workload, tmp_path / "trace.csv")
    read = read_trace(tmp_path / "trace.csv", {stage.name: stage for stage in workload.stages})
    assert list(read.stages) == list(workload.stages)
    for job, batches in workload.jobs.items():
        for one, other in zip(batches, read.jobs[job], strict=True):
            assert other.times_s == pytest.approx(one.times_s, abs=1e-3)
            assert other.arrivals_s == pytest.approx(one.arrivals_s - one.arrivals_s[0], abs=2e-3)


def test_stage_without_settings_has_the_longest_time_as_timeout(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEAD + "a,0,0,5,1\na,0,2,7,\n")
    assert list(read_trace(file, {"run": Stage("run", 10.0, 60.0)}).stages) == [
        Stage("compile", 1.0, 7.0),
        Stage("run", 10.0, 60.0),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ":1: expected job,batch,arrival_s and one column a stage"),
        ("job,batch,arrival_s\n", "one column a stage"),
        ("a,b,c,d\n", "one column a stage"),
        (HEAD, "it has no item"),
        ("job,batch,arrival_s,run,run\n", "stage 'run': a stage has a name, and one column"),
        ("job,batch,arrival_s,\n", "stage '': a stage has a name"),
        (HEAD + "a,0,1,2\n", ":2: 4 fields, expected 5"),
        (HEAD + "a\n", ":2: 1 fields, expected 5"),
        (HEAD + "a,0,1,2,3\na,0,x,2,3\n", ":3: arrival_s: expected seconds, got 'x'"),
        (HEAD + "a,0,1,nan,3\n", ":2: compile: expected seconds from 0, got 'nan'"),
        (HEAD + "a,0,1,2,-3\n", ":2: run: expected seconds from 0, got '-3'"),
        (HEAD + "a,0,inf,2,3\n", "arrival_s: expected seconds from 0"),
        (HEAD + "\x00,0,1,2,3\n" + '"' + "x" * 200_000, "it is no CSV"),
    ],
)
def test_bad_trace_is_refused_with_its_line(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(TraceError) as refused:
        read_trace(file)
    assert words in str(refused.value)
    assert str(file) in str(refused.value)


def test_trace_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="it is no CSV"):
        read_trace(file)


def test_settings_of_an_unknown_stage_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEAD + "a,0,0,5,1\n")
    with pytest.raises(TraceError, match="no column for stage judge: it has compile, run"):
        read_trace(file, {"judge": Stage("judge")})
