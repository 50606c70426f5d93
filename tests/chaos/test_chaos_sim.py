"""Whole simulated runs under faults: determinism, traces, commands."""

import json
import random
from pathlib import Path

import pytest

from gleaner.chaos.fault_scenarios import BY_PATH
from gleaner.chaos.faults import BadScorer, CorruptChunk, KillOnMessage, KillProcess
from gleaner.chaos.plan import Loaded, load
from gleaner.chaos.replay import replay
from gleaner.chaos.schedule import Schedule, dump
from gleaner.chaos.sim_run import run
from gleaner.rlctl import __main__ as command_line

TINY = str(Path(__file__).with_name("tiny.toml"))
KILLS = Schedule(
    seed=3,
    faults=(
        KillProcess(at_s=7.0, host="head", process="rollout"),
        CorruptChunk(at_s=7.5, host="@preemptible/0", count=2),
        KillProcess(at_s=8.0, host="@preemptible/1", process="engine"),
        KillProcess(at_s=9.0, host="reserved-1", process="trainer"),
        BadScorer(at_s=10.0, how="crash", count=2),
    ),
)


@pytest.fixture(scope="module")
def tiny() -> Loaded:
    return load(TINY)


@pytest.fixture(autouse=True)
def _with_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """As entry points make it, wherever the tests run."""
    from gleaner.chaos.commands import sim

    monkeypatch.setattr("gleaner.rlctl.extensions.announced", lambda: [sim])


def test_seed_and_schedule_give_one_history_with_any_observer(tiny: Loaded) -> None:
    once, again = run(tiny, 3, KILLS), run(tiny, 3, KILLS)
    assert once.broken == ()
    assert (once.ended, once.steps) == ("done", tiny.config.job.steps)
    assert once.fired == {"bad_scorer": 2, "corrupt_chunk": 2, "kill_process": 3}
    assert once.trace_hash == again.trace_hash
    assert once.counts == again.counts
    assert once.counts["journals.replayed"] > 0
    assert once.counts["weights.bad_chunks"] + once.counts.get("weights.resumed_pulls", 0) > 0
    assert run(tiny, 4, KILLS).trace_hash != once.trace_hash


def test_kept_requests_keep_every_promise_under_kills(tmp_path: Path) -> None:
    kept = '[settings.engine]\nin_flight = "kept"\n[settings.rollout]\nstaleness = 1\n'
    file = tmp_path / "kept.toml"
    longer = Path(TINY).read_text().replace("steps = 2", "steps = 4").replace("tokens = 48", "tokens = 96")
    file.write_text(longer.replace("[settings.rollout]\n", kept))
    outcome = run(load(str(file)), 3, KILLS)
    assert (outcome.broken, outcome.ended) == ((), "done")
    assert outcome.counts["requests.kept"] > 0


def test_replay_records_every_message_and_ends_the_same(tiny: Loaded, tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    outcome = replay(tiny, 3, KILLS, trace=trace)
    assert outcome.run.trace_hash == run(tiny, 3, KILLS).trace_hash
    lines = trace.read_text().splitlines()
    assert len(lines) == outcome.lines > 1000
    assert outcome.tail == ()


def test_command_replays_a_schedule_and_shows_trace_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kills.toml"
    file.write_text(dump(KILLS))
    assert (
        command_line.main(["sim", "replay", "3", "--campaign", TINY, "--schedule", str(file), "--tail", "5"])
        == 0
    )
    out = capsys.readouterr().out
    assert "every check held" in out
    assert "faults fired     bad_scorer 2, corrupt_chunk 2, kill_process 3" in out
    assert "of these         bad_scorer: crash 2" in out
    assert len(out.splitlines()) == 9


@pytest.mark.timeout(300)  # a process of its own, with all imports
def test_command_runs_a_campaign_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "told.json"
    code = command_line.main(
        ["sim", "run", "--seeds", "0:1", "--json", str(file), "--jobs", "1", "--minimal", str(tmp_path)]
    )
    outcome = json.loads(file.read_bytes())
    assert [it["seed"] for it in outcome["results"]] == [0]
    assert outcome["violations"] == 0
    assert code == (0 if outcome["valid"] else 1)
    assert ("INVALID" in capsys.readouterr().out) is not outcome["valid"]
    assert len(outcome["trace_hash"]) == 32


def test_command_lists_campaigns(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["sim", "list"]) == 0
    out = capsys.readouterr().out
    for word in ("nightly", "kill_on_message", "no silent wait", "partial re-pull"):
        assert word in out


def test_invalid_seed_or_campaign_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["sim", "run", "--seeds", "5:2"]) == 2
    assert command_line.main(["sim", "run", "--campaign", "nope"]) == 2
    hunts = "hunt, hunt-ahead, hunt-cancelled, hunt-gateway, hunt-kept, hunt-published"
    hunts += ", hunt-sampling, hunt-shared, hunt-singles, hunt-unscored"
    others = "machines, nightly, pipelines, rewards, rounds, singles, soak, stairs, widths"
    assert f"there are ci, gang, gateway, {hunts}, {others}" in capsys.readouterr().err


def test_instance_restarted_during_update_serves_published_version(tiny: Loaded) -> None:
    """The instance dies when it receives newer weights, and registers while the other one loads them."""
    moment = {"process": "engine", "message": "ServeWeights"}
    outcome = run(
        tiny,
        1,
        Schedule(
            seed=1,
            faults=(
                KillOnMessage(at_s=6.5, host="@preemptible/0", **moment),  # type: ignore[arg-type]
                KillOnMessage(at_s=6.5, host="@preemptible/1", count=2, **moment),  # type: ignore[arg-type]
            ),
        ),
    )
    assert (outcome.broken, outcome.ended, outcome.steps) == ((), "done", tiny.config.job.steps)
    assert outcome.fired == {"kill_on_message": 2}
    assert outcome.counts["restarts.one_for_one"] >= 2


def test_host_without_memory_for_weights_waits_while_job_continues(tiny: Loaded) -> None:
    faults = BY_PATH["no room"].compose(random.Random(3), "spot-1", 7.0)
    outcome = run(tiny, 3, Schedule(seed=3, faults=faults))
    assert (outcome.broken, outcome.ended, outcome.steps) == ((), "done", tiny.config.job.steps)
    assert outcome.fired == {"disk_full": 1, "kill_host": 1}
    assert outcome.counts["weights.no_room"] > 0
