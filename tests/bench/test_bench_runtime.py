"""The comparison of actor runtimes: its pure parts, and a tiny run of our rows."""

import json
import math
import os
import subprocess
import sys
from array import array

import pytest

from bench.runtime import figure, harness, page, rows, task
from bench.runtime.__main__ import replaced
from bench.runtime.harness import Results, Turn, measure, run_program, turns
from bench.runtime.rows import OURS, PEERS, ROWS, SYSTEMS, met, middle, row
from bench.runtime.table import figure as shown
from bench.runtime.task import Sink, Sizes, Storm, payload, percentile

TINY = Sizes(0.05, 0.02, 0.5, 16, 2, 50, 20, 0.1, 1, 5.0)


def samples_of(name: str, metric: str, **by_system: float) -> dict[str, dict[str, dict[str, list[float]]]]:
    return {name: {system: {metric: [value]} for system, value in by_system.items()}}


def test_percentile_is_an_observed_sample() -> None:
    assert percentile([5.0, 1.0, 3.0], 0.5) == 3.0
    assert percentile(array("d", range(1, 101)), 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0
    assert math.isnan(percentile([], 0.5))


def test_payload_has_100_bytes_and_its_number() -> None:
    assert len(payload(123_456)) == 100
    assert task.number_of(payload(123_456)) == 123_456


def test_reordered_and_duplicate_messages_are_counted() -> None:
    sink = Sink()
    for number in (0, 1, 2, 2, 5, 6):
        sink.take(payload(number))
    assert (sink.count, sink.disordered) == (6, 2)


def test_unanswered_ask_is_lost_and_late_reply_not_rated(tmp_path) -> None:
    for process in ("one", "two"):
        storm = Storm(asked=4)
        storm.answer(True, 0.001, True)
        storm.answer(True, 0.003, False)
        storm.answer(False, 0.002, True)
        assert storm.outstanding == 1
        storm.save(tmp_path, process)
    figures = Storm.load_all(tmp_path).figures(2.0)
    assert figures["lost"] == 4
    assert figures["per_s"] == 1.0
    assert figures["p99_ms"] == 3.0


def test_systems_alternate_and_every_second_round_is_reversed() -> None:
    order = list(turns([row("ask_1"), row("tell"), row("killed")], ["pyzmq", OURS, "ray"], 2))
    pair = [(turn.round, turn.system, turn.rows) for turn in order if turn.group == "pair"]
    both = ("ask_1", "tell")
    assert pair == [
        (0, "pyzmq", both),
        (0, OURS, both),
        (0, "ray", both),
        (1, "ray", both),
        (1, OURS, both),
        (1, "pyzmq", both),
    ]
    assert {turn.system for turn in order if turn.group == "death"} == {OURS, "ray"}


def test_remeasured_rows_replace_old_ones_with_a_date() -> None:
    one = {
        "sizes": {"seconds": 2.0},
        "rounds": 5,
        "began": "monday",
        "machine": {},
        "notes": {},
        "versions": {},
    }
    earlier = {**one, "samples": {"tell": {"ray": {"per_s": [1.0]}}, "idle": {"ray": {"percent": [2.0]}}}}
    later = {**one, "began": "friday", "samples": {"tell": {"ray": {"per_s": [3.0]}}}}
    merged = replaced(earlier, later)
    assert merged["samples"] == {**earlier["samples"], **later["samples"]}
    assert (merged["began"], merged["again"]) == (
        "monday",
        [{"rows": ["tell"], "began": "friday", "machine": {}}],
    )
    assert replaced(merged, {**later, "began": "sunday"})["again"] == [
        {"rows": ["tell"], "began": "sunday", "machine": {}}
    ]
    with pytest.raises(ValueError, match="rounds"):
        replaced(earlier, {**later, "rounds": 1})


def test_median_is_nan_when_most_rounds_never_saw_it() -> None:
    nan = float("nan")
    assert middle({"frozen": {"ray": {"seconds": [nan, 1.0, nan]}}}, "frozen", "ray", "seconds") is not None
    assert math.isnan(middle({"frozen": {"ray": {"seconds": [nan, 1.0, nan]}}}, "frozen", "ray", "seconds"))
    assert middle({"frozen": {"ray": {"seconds": [nan, 1.0, 2.0]}}}, "frozen", "ray", "seconds") == 2.0
    assert middle({}, "frozen", "ray", "seconds") is None


@pytest.mark.parametrize(("ours", "verdict"), [(150.0, True), (150.1, False)])
def test_relative_goal_uses_the_figure_of_the_same_run(ours: float, verdict: bool) -> None:
    assert met(row("ask_1"), samples_of("ask_1", "p50_us", gleaner=ours, pyzmq=100.0)) is verdict


def test_relative_goal_without_its_figure_has_no_verdict() -> None:
    assert met(row("ask_1"), samples_of("ask_1", "p50_us", gleaner=50.0)) is None


def test_missed_goal_needs_no_peer_to_be_missed() -> None:
    assert met(row("restart"), samples_of("restart", "ms", gleaner=25.0)) is False


def test_goal_faster_than_peers_means_the_fastest_peer() -> None:
    storm = samples_of("storm", "per_s", gleaner=100.0, ray=10.0, xoscar=100.0)
    storm["storm"][OURS]["lost"] = [0.0]
    assert met(row("storm"), storm) is False
    storm["storm"][OURS]["per_s"] = [101.0]
    assert met(row("storm"), storm) is True
    storm["storm"][OURS]["lost"] = [1.0]
    assert met(row("storm"), storm) is False


def test_configured_bound_comes_from_the_run() -> None:
    frozen = {"frozen": {OURS: {"seconds": [2.5], "bound_s": [3.0]}}}
    assert met(row("frozen"), frozen) is True
    frozen["frozen"][OURS]["seconds"] = [float("nan")]
    assert met(row("frozen"), frozen) is False


def test_every_goal_uses_a_figure_of_its_row() -> None:
    for spec in ROWS:
        for goal in spec.goals:
            assert spec.metric(goal.metric)
            assert not goal.of or goal.of in (*SYSTEMS, "every peer")


def test_unsupported_or_endless_row_is_run_once() -> None:
    results = Results()
    results.add(
        "ray", {"version": "ray 1", "found": {"frozen": {"seconds": math.nan}}, "notes": {"spawn": "no"}}
    )
    assert results.hopeless("frozen", "ray")
    assert results.hopeless("spawn", "ray")
    assert not results.hopeless("killed", "ray")


def test_figures_are_shown_with_three_digits() -> None:
    found = [shown(value) for value in (0, 0.01234, 1.5, 84.26, 1234567.8, float("nan"), None)]
    assert found == ["0", "0.0123", "1.50", "84.3", "1,234,568", "never", "-"]
    assert shown(None, "an actor is a process") == "no"


def results_of_a_run() -> dict[str, object]:
    found = samples_of("ask_1", "p50_us", pyzmq=100.0, gleaner=160.0, ray=600.0)
    return {
        "began": "2026-01-01T00:00:00+00:00",
        "took_s": 1800,
        "rounds": 5,
        "sizes": {"seconds": 2.0, "warm_up_s": 0.5, "storm_s": 10.0, "never_s": 45.0},
        "machine": {"cpu": "Abacus", "cores": "2"},
        "samples": found,
        "notes": {"spawn": {"ray": "an actor is a process"}},
        "versions": {"ray": "ray 9"},
    }


def test_page_shows_results_missed_goals_and_reasons(tmp_path) -> None:
    words = {"rules": "Rules.", "how": dict.fromkeys(SYSTEMS, "Somehow."), "reasons": {"ask_1": "The moon."}}
    text = page.text(results_of_a_run(), words)
    assert "| ask between two processes, one outstanding | p50, us | 100 | 160 | 600 | - | - | - |" in text
    assert "160 us (goal <= 150, pyzmq) | NOT met |" in text
    assert "The moon." in text
    assert "`spawn`, ray: an actor is a process" in text
    assert "ray 9" in text
    assert "Abacus" in text


def test_page_has_text_for_every_system(tmp_path) -> None:
    written = page.write(results_of_a_run(), tmp_path)
    assert all(f"**{system}**" in written.read_text() for system in SYSTEMS)


def test_plot_has_a_panel_per_measured_row(tmp_path) -> None:
    assert figure.write(results_of_a_run(), tmp_path).read_bytes().startswith(b"\x89PNG")


def test_system_without_environment_is_skipped_with_a_message(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(harness, "ENVIRONMENTS", tmp_path)
    output: list[str] = []
    assert harness.available(SYSTEMS, output.append) == ["pyzmq", OURS]
    assert len(output) == len(PEERS)
    assert all("SKIPPED" in line for line in output)


def test_failing_program_is_reported_and_leaves_no_process() -> None:
    results = Results()
    problem = run_program(Turn(0, "pyzmq", "no such group", ("ask_1",)), ["ask_1"], TINY, results)
    assert "KeyError" in problem
    assert results.samples == {}


def test_leftover_processes_are_ended_by_their_mark() -> None:
    environment = {**os.environ, task.MARK: "left-behind"}
    code = "import time; print('up', flush=True); time.sleep(60)"
    left = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    assert left.stdout is not None
    with left.stdout as output:
        output.readline()
    harness.end("left-behind")
    assert left.wait(60) < 0


@pytest.mark.long
def test_own_rows_and_limit_are_measured_end_to_end() -> None:
    output: list[str] = []
    specs = [spec for spec in ROWS if spec.name not in ("frozen", "restart_process")]  # these take seconds
    results = measure(specs, ["pyzmq", OURS], 1, TINY, output.append)
    assert results.notes == {}, output
    assert set(results.samples) == {spec.name for spec in specs}
    for spec in specs:
        for metric in spec.metrics:
            value = middle(results.samples, spec.name, OURS, metric.name)
            assert value is not None
            assert not math.isnan(value)
    for name in ("storm", "tell"):
        assert results.samples[name][OURS]["lost"] == [0]
    assert results.samples["tell"][OURS]["disordered"] == [0]
    json.dumps(results.samples)
    assert rows.met(row("frozen"), results.samples) is None
