"""The command line: help, refusals and exit codes of every command."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from gleaner.actors.training.history import HistoryWriter
from gleaner.actors.training.records import Run
from gleaner.configs.load import load
from gleaner.rlctl import runs
from gleaner.rlctl.__main__ import main, parser
from gleaner.rlctl.command_list import COMMANDS
from gleaner.rlctl.commands.kill import signal_number
from gleaner.rlctl.errors import FAILED, NOTHING, OK, UNCHECKED, USAGE, CommandError
from gleaner.rlctl.targets import resolve
from gleaner.supervisor.system_messages import ActorState, SystemState
from gleaner.transport.keys import NodeKeys


@pytest.fixture
def run(tmp_path: Path) -> runs.RunDir:
    return runs.create(tmp_path / "runs", load("quickstart"))


def at(run: runs.RunDir) -> list[str]:
    return ["--runs-dir", str(run.path.parent)]


SLOW = {
    "matplotlib",
    "numpy",
    "psutil",
    "reasoning_gym",
    "sympy",
    "torch",
    "transformers",
    "aiohttp",
    "jinja2",
}
"""Slow packages that an inspection of a cluster must not import."""


def imported_by(program: str, folder: Path) -> set[str]:
    """The modules that a process of its own has imported after `program`."""
    listing = f"import json, sys\n{program}\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True, cwd=folder
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == OK
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"gleaner {project['version']}\n"


@pytest.mark.parametrize("words", [["--help"], ["ps"], ["kill", "trainer"], ["ps", "--help"]])
def test_command_imports_only_its_module_when_nothing_runs(words: list[str], tmp_path: Path) -> None:
    loaded = imported_by(
        f"from gleaner.rlctl.__main__ import main\ntry:\n    main({words!r})\nexcept SystemExit:\n    pass",
        tmp_path,
    )
    commands = {name.rpartition(".")[2] for name in loaded if name.startswith("gleaner.rlctl.commands.")}
    assert commands == {"terminal", *set(words) & set(COMMANDS)}
    packages = {name.removeprefix("gleaner.").partition(".")[0] for name in loaded}
    assert "rlctl" in packages
    assert not (SLOW | {"msgspec", "rich", "supervisor", "transport", "zmq"}) & packages


def test_cluster_inspection_imports_no_slow_package(tmp_path: Path) -> None:
    loaded = imported_by(
        "import gleaner.rlctl.client, gleaner.rlctl.process_table, gleaner.rlctl.commands.kill", tmp_path
    )
    packages = {name.removeprefix("gleaner.").partition(".")[0] for name in loaded}
    assert {"supervisor", "zmq"} <= packages
    assert not SLOW & packages


def test_node_agent_help_does_not_import_the_daemon(tmp_path: Path) -> None:
    loaded = imported_by(
        "from gleaner.nodeagent.__main__ import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass",
        tmp_path,
    )
    assert "gleaner.nodeagent.cli" in loaded
    assert (
        not {"gleaner.nodeagent.node", "gleaner.nodeagent.host_services", "numpy", "prometheus_client"}
        & loaded
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_calling_a_command_imports_no_other_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def recorded(module: str) -> object:
        asked.append(module)
        return import_module(module)

    monkeypatch.setattr("gleaner.rlctl.__main__.import_module", recorded)
    parser([name])
    assert asked == [f"gleaner.rlctl.commands.{name}"]


def test_help_lists_every_command_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == OK
    shown = " ".join(capsys.readouterr().out.split())
    for name, line in COMMANDS.items():
        assert f" {name} {line}" in shown
    assert " chaos inject faults into a real multi-process cluster" in shown, (
        "commands of other packages are listed too"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    output = capsys.readouterr().out
    assert ended.value.code == OK
    assert f"rlctl {name}" in output.split("examples:")[1]
    assert "exit codes: 0 done" in output


@pytest.mark.parametrize("name", ["ps", "tree", "logs", "report", "audit", "resume"])
def test_folder_without_runs_gives_exit_code_3(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--runs-dir", str(tmp_path)]) == NOTHING
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("command", [["ps"], ["tree"], ["kill", "trainer"], ["preempt", "spot-1"]])
def test_asking_a_stopped_run_gives_exit_code_3(
    command: list[str], run: runs.RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *at(run)]) == NOTHING
    assert main([*command, "--run", run.id, *at(run)]) == NOTHING
    assert f"rlctl resume {run.id}" in capsys.readouterr().err


def test_bad_setting_is_named_with_the_expected_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["run", "quickstart", "--runs-dir", str(tmp_path), "--set", "rollout.prompts=abc"])
    errors = capsys.readouterr().err
    assert code == USAGE
    assert "rollout.prompts: expected an integer ≥ 1, got 'abc' (--set)" in errors
    assert not list(tmp_path.iterdir()), "nothing is made before everything was checked"


def test_every_problem_is_reported_before_anything_is_created(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("t_seconds,event,instance_id\n0,explode,spot-1\n")
    model = tmp_path / "model"
    runs_dir = tmp_path / "runs"
    sets = ["--set", f"model.path={model}", "--set", "network.bind=10.0.0.1"]
    code = main(["run", "quickstart", "--trace", str(trace), "--runs-dir", str(runs_dir), *sets])
    errors = capsys.readouterr().err
    assert code == USAGE
    assert "trace.csv:2: unknown event 'explode'" in errors
    assert "rlctl keygen" in errors
    assert "model.path" in errors
    assert not runs_dir.exists()


def test_unencrypted_weights_beyond_loopback_are_refused_before_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    NodeKeys.generate().save(tmp_path / "keys")
    sets = ["--set", "network.bind=10.0.0.1", "--set", f"network.keys={tmp_path / 'keys'}"]
    assert main(["run", "quickstart", "--runs-dir", str(tmp_path / "runs"), *sets]) == USAGE
    assert 'network.bulk = "clear"' in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_too_little_shared_memory_is_reported_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gleaner.rlctl.preflight.MEMORY_SPARE_BYTES", 1 << 60)
    assert main(["run", "quickstart", "--runs-dir", str(tmp_path / "runs")]) == USAGE
    assert "--shm-size" in capsys.readouterr().err


def test_key_without_its_head_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "quickstart", "--keys", str(tmp_path), "--runs-dir", str(tmp_path / "r")]) == USAGE
    assert main(["ps", "--head", "tcp://127.0.0.1:1", "--keys", str(tmp_path)]) == USAGE
    assert "--head-key" in capsys.readouterr().err


def test_driven_run_is_not_resumed(run: runs.RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    with run.lock():
        assert run.driven()
        assert main(["resume", run.id, *at(run)]) == FAILED
        with pytest.raises(CommandError), run.lock():
            pass
    assert "runs already" in capsys.readouterr().err
    assert not run.driven()


def test_ended_run_is_not_resumed(run: runs.RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    run.history.write_text(
        '{"kind":"end","t_s":1,"tokens_collected":1,"tokens_lost":0,"tokens_generated_twice":0,'
        '"requests_migrated":0,"ok":true}\n'
    )
    assert main(["resume", *at(run)]) == FAILED
    assert "has ended" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("began", "now"), [("off", "tail"), ("tail", "off"), ("auto", "off"), (None, "tail")]
)
def test_run_is_not_resumed_with_rounds_when_it_began_without(
    began: str | None,
    now: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = begun_run(tmp_path, began, now)
    monkeypatch.setattr("gleaner.rlctl.commands.resume.execute", lambda *_: pytest.fail("a process started"))
    assert main(["resume", *at(run)]) == USAGE
    error = capsys.readouterr().err
    assert f"{run.config_file}: rounds.mode: expected {began or 'off'}" in error
    assert f"got {now}" in error
    assert "set it back" in error
    assert len(error.splitlines()) == 1, "one line, no traceback"


@pytest.mark.parametrize(("began", "now"), [("tail", "tail"), ("tail", "auto"), (None, "off")])
def test_run_is_resumed_when_it_keeps_its_rounds(
    began: str | None, now: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun_run(tmp_path, began, now)
    monkeypatch.setattr("gleaner.rlctl.commands.resume.execute", lambda *_: OK)
    assert main(["resume", *at(run)]) == OK


def begun_run(folder: Path, began: str | None, now: str) -> runs.RunDir:
    """A run whose history begins with one `rounds.mode`, None for a history that has no such setting, and
    whose settings have another one now."""
    run = runs.create(folder / "runs", load("quickstart", [f"rounds.mode={now}"]))
    config = msgspec.to_builtins(load("quickstart", [f"rounds.mode={began or 'off'}"]))
    if began is None:
        del config["rounds"]
    writer = HistoryWriter(run.history)
    writer.write(Run(t_s=0.0, run_id=run.id, seed=0, steps=24, config=config))
    writer.close()
    return run


def test_runs_are_found_by_id_prefix_path_and_age(tmp_path: Path) -> None:
    config = load("quickstart")
    older, newer = (runs.create(tmp_path, config) for _ in range(2))
    os.utime(older.path, (1, 1))
    assert runs.find(tmp_path) == newer
    assert runs.find(tmp_path, older.id) == older
    assert runs.find(tmp_path, str(older.path)) == older
    assert runs.find(tmp_path, newer.id[:-1]) == newer
    with pytest.raises(CommandError, match="2 runs begin so"):
        runs.find(tmp_path, "quickstart")
    with pytest.raises(CommandError, match="no such run"):
        runs.find(tmp_path, "another")
    assert older.config() == config


def test_audit_of_an_empty_run_names_missing_evidence(
    run: runs.RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "--json", *at(run)]) == UNCHECKED
    output = json.loads(capsys.readouterr().out)
    assert not output["ok"]
    assert set(output["invariants"].values()) == {"not checked"}
    assert all("cannot be checked" in it["text"] for it in output["violations"])
    assert not any(it["checked"] for it in output["violations"])
    assert main(["audit", *at(run)]) == UNCHECKED
    shown = capsys.readouterr().out
    assert "BROKEN" not in shown
    assert shown.count("not checked") == 6


def test_node_keys_trust_each_other_and_new_are_added(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    assert main(["keygen", str(folder), "--node", "head", "--node", "spot-1"]) == OK
    assert main(["keygen", str(folder), "--node", "laptop"]) == OK
    keys = {name: NodeKeys.load(folder / name) for name in ("head", "spot-1", "laptop")}
    all_keys = {it.public for it in keys.values()}
    assert all(it.allowed.admitted == all_keys for it in keys.values())
    secret = (folder / "head" / "node.secret").read_text()
    assert main(["keygen", str(folder), "--node", "head"]) == FAILED
    assert (folder / "head" / "node.secret").read_text() == secret
    assert main(["keygen", str(folder), "--node", "../evil"]) == USAGE


def write_log(run: runs.RunDir, name: str, *lines: str) -> None:
    file = run.nodes / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))


def test_logs_of_all_processes_are_merged_by_time(
    run: runs.RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(
        run,
        "head/logs/rollout.log",
        "2026-01-01 10:00:00,100 INFO a",
        "2026-01-01 10:00:02,000 INFO c",
        "  more",
    )
    write_log(run, "spot-1/logs/engine.log", "2026-01-01 10:00:01,000 INFO b")
    assert main(["logs", *at(run)]) == OK
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["a", "b", "c", "more"]
    assert main(["logs", "rollout/manager", "-n", "1", *at(run)]) == OK
    assert capsys.readouterr().out == "head/rollout:   more\n"
    for target in ("spot-1", "spot-1/engine", "engine"):
        assert main(["logs", target, "--json", *at(run)]) == OK
        assert json.loads(capsys.readouterr().out)["source"] == "spot-1/engine"
    assert main(["logs", "nobody", *at(run)]) == NOTHING


def state(node: str, process: str, pid: int, *actors: ActorState) -> SystemState:
    return SystemState(
        node=node, process=process, pid=pid, endpoint="", actors=list(actors), refused={}, dead_letters={}
    )


def actor(name: str, pid: int = 0) -> ActorState:
    figures = {"incarnation": 1, "mailbox": 0, "handled": 0, "dropped": 0, "restarts": 0}
    return ActorState(name=name, state="running", last_failure="", pid=pid, **figures)


def test_target_is_a_host_an_actor_or_process() -> None:
    states = [
        state("head", "agent", 1, actor("cluster/scheduler"), actor("rollout", 2), actor("reserved-1", 9)),
        state("head", "rollout", 2, actor("rollout/manager")),
        state("spot-1", "agent", 3, actor("engine", 4)),
        state("spot-2", "agent", 5, actor("engine", 6)),
        state("spot-2", "engine", 6, actor("spot-2/engine")),
    ]
    assert str(resolve("rollout/manager", states)) == "head/rollout"
    assert resolve("rollout", states).pid == 2
    assert str(resolve("spot-1", states)) == "spot-1"
    assert resolve("spot-2/engine", states).pid == 6
    assert resolve("spot-1/engine", states).pid == 4, "its parent reports it before it answers"
    with pytest.raises(CommandError, match="several processes") as several:
        resolve("engine", states)
    assert several.value.code == USAGE
    with pytest.raises(CommandError, match="no such actor") as error:
        resolve("nobody", states)
    assert error.value.code == NOTHING


def test_signals_are_named_or_numbered() -> None:
    assert signal_number("KILL") == signal_number("SIGKILL") == signal_number("9") == signal.SIGKILL
    for text in ("NOPE", "999"):
        with pytest.raises(CommandError, match="no such signal"):
            signal_number(text)
