"""Unusable settings and traces: each is refused with its place before anything starts."""

import os
from pathlib import Path

import pytest
from tiny_command import CONFIG, Rlctl, command

from gleaner.rlctl.errors import USAGE

HEADER = "t_seconds,event,instance_id\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[rollout]\nsample = 8\n", ["rollout.sample: unknown key", "did you mean rollout.samples?"]),
        ("[trainning]\nfoo = 1\n", ["trainning: unknown key", "did you mean training?"]),
        ("[rollout]\nprompts = 'x'\n", ["rollout.prompts: expected an integer ≥ 1, got 'x'"]),
        ("[rollout]\nmax_pending = 0\n", ["rollout.max_pending: expected an integer ≥ 1, got 0"]),
        ("rollout = 3\n", ["rollout: expected a section of settings, got 3"]),
        ("[training]\nmicro_batch_groups = 64\n", ["training.micro_batch_groups", "at most rollout.prompts"]),
        ("[seeding]\nmax_s = 0.1\n", ["seeding.initial_s: expected a number from min_s"]),
        ("[rollout]\nprompts = \n", ["not valid TOML", "line 2"]),
        ("\xff\x00", ["not valid TOML"]),
    ],
)
def test_unusable_setting_is_named_with_the_expectation(
    refused: Rlctl, tmp_path: Path, text: str, words: list[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    code, printed = refused(str(file))
    assert code == USAGE
    assert str(file) in printed
    for word in words:
        assert word in printed


def test_every_mistake_of_a_file_is_reported_at_once(refused: Rlctl, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[rollout]\nsample = 8\nprompts = 'x'\n[job]\nsteps = 0\n")
    assert refused(str(file), "--set", "engine.slots=many")[1].count("error: ") == 4


@pytest.mark.parametrize(
    ("sets", "word"),
    [
        (["garbage"], "expected section.key=value, got 'garbage'"),
        (["=3"], "expected section.key=value, got '=3'"),
        (["rollout=3"], "rollout: is a section; set one of its keys, for example rollout.prompts"),
        (["a.b=c"], "a.b: unknown key; known here:"),
        (["rollout.samples=many"], "rollout.samples: expected an integer ≥ 2, got 'many'"),
        (["job.seed=99999999999999999999"], "job.seed: expected an integer"),
        (["job.name=../x"], "job.name: expected a text that matches"),
        (["network.bind=0.0.0.0"], "a wildcard names no interface"),
        (["network.bind=10.1.2.3"], "rlctl keygen"),
        (["network.keys=/nowhere"], "/nowhere"),
    ],
)
def test_unusable_set_options_are_refused(refused: Rlctl, sets: list[str], word: str) -> None:
    code, printed = refused(str(CONFIG), *(part for text in sets for part in ("--set", text)))
    assert code == USAGE
    assert word in printed


def test_non_settings_files_are_refused(refused: Rlctl, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(os.urandom(2000) + b"\xff")
    (tmp_path / "huge").write_bytes(bytes(2 << 20))
    os.mkfifo(tmp_path / "pipe")
    for name, word in {
        "none.toml": "no such file; name a TOML file or a preset (onehost, quickstart, rlboost-14b, sglang)",
        "": "is a folder",
        "binary": "expected UTF-8 text",
        "huge": "larger than",
        "pipe": "is a device, pipe or socket",
    }.items():
        code, printed = refused(str(tmp_path / name))
        assert code == USAGE
        assert word in printed
    assert "is a device" in refused("/dev/zero")[1]  # a file without an end


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{HEADER}5,add,a\n3,add,b\n", ":3: t_seconds 3 comes after 5; sort the rows by time"),
        (f"{HEADER}1,ad,a\n", ":2: unknown event 'ad'; use add, notice or remove"),
        (f"{HEADER}1,remove,z\n", ":2: remove of z, which was never added"),
        (f"{HEADER}1,notice,z\n", ":2: notice of z, which was never added"),
        (f"{HEADER}1,add,a\n2,remove,a\n3,remove,a\n", ":4: remove of a, which is gone since line 3"),
        (f"{HEADER}1,add,a\n2,add,a\n", ":3: a is added again, it is up since line 2"),
        (f"{HEADER}1,add\n", ":2: expected 3 values"),
        (f"{HEADER}nan,add,a\n", ":2: t_seconds 'nan': expected a number of seconds"),
        (f"{HEADER}1,add,../a\n", ":2: instance_id '../a': use 1 to 64 letters"),
        (f"{HEADER}1,add,head\n", ": head is the name of another host; rename the instance"),
        (HEADER, ": no events; add rows such as 0,add,spot-1"),
        ("", ":1: expected the header t_seconds,event,instance_id"),
        ("time,what,who\n1,add,a\n", ":1: expected the header t_seconds,event,instance_id"),
    ],
)
def test_unusable_trace_is_refused_with_its_line(
    refused: Rlctl, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    code, printed = refused(str(CONFIG), "--trace", str(file))
    assert code == USAGE
    assert f"{file}{words}" in printed


def test_non_trace_files_are_refused(refused: Rlctl, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    os.mkfifo(tmp_path / "pipe")
    for name, word in {
        "none.csv": "No such file",
        "": "Is a directory",
        "binary": "expected UTF-8 text",
        "pipe": "is a device, pipe or socket",
    }.items():
        code, printed = refused(str(CONFIG), "--trace", str(tmp_path / name))
        assert code == USAGE
        assert str(tmp_path / name) in printed
        assert word in printed


def test_command_line_prints_one_line_per_error(tmp_path: Path) -> None:
    ended = command("rlctl", "run", str(CONFIG), "--set", "job.step=3", "--runs-dir", str(tmp_path / "runs"))
    assert (ended.returncode, ended.stdout) == (USAGE, "")
    assert ended.stderr == f"error: {CONFIG}: job.step: unknown key; did you mean job.steps? (--set)\n"
    assert not (tmp_path / "runs").exists()
