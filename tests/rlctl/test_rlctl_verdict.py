"""The verdict of a run: a sentence, its colour, and the exit code.

It is green where all was reached; a run without a serving instance has its own exit code.
"""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from gleaner.actors.training.history import (
    AnyRecord,
    End,
    Eval,
    FirstInstance,
    HistoryWriter,
    Node,
    Phase,
    Restart,
    Run,
    Sample,
    Step,
    Verifier,
)
from gleaner.configs.load import load
from gleaner.configs.schema import Config
from gleaner.rlctl import outcome
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import FAILED, OK, UNSCORED, UNSERVED, CommandError, unscored, unserved
from gleaner.rlctl.live_view import announce, render, show
from gleaner.rlctl.progress import Progress, plain_line
from gleaner.rlctl.report.model import Report, report_of, story_of
from gleaner.rlctl.report.page import page_of
from gleaner.rlctl.runs import RunDir

WHY = "2 preemptible hosts are up, engines failed 7 times, the last one spot-1/engine: the server ended"
NONE = FirstInstance(t_s=300, served=False, waited_s=300.0, hosts=2, why=WHY)
SERVES = FirstInstance(t_s=9, served=True, waited_s=8.5, hosts=2)
END = End(t_s=90, tokens_collected=9, tokens_lost=0, tokens_generated_twice=0, requests_migrated=7, ok=True)
BROKEN = End(
    t_s=90, tokens_collected=9, tokens_lost=1, tokens_generated_twice=0, requests_migrated=7, ok=False,
    violations=["I2: 1 token lost"],
)  # fmt: skip


def story(
    first: float, last: float, *more: AnyRecord, problems: int = 128, steps: int = 0
) -> list[AnyRecord]:
    evals: Sequence[tuple[str, float]] = (("first", first), ("last", last))
    return [
        Run(t_s=0, run_id="r-1", seed=5, steps=4, config={}),
        *(Eval(t_s=1, step=0, when=when, reward=reward, problems=problems) for when, reward in evals),  # type: ignore[arg-type]
        *more,
    ]


def reported(records: list[AnyRecord], *sets: str) -> Report:
    return report_of(records, load("quickstart", sets))


def sample(step: int) -> Sample:
    return Sample(
        t_s=10.0 + step, step=step, reserved=1, preemptible=2, serving=3, executing=4, pending=0,
        tokens_collected=9, migrations=0, tokens_per_s=9.0, busy=2,
    )  # fmt: skip


def trained(number: int) -> Step:
    return Step(
        t_s=20.0 + number, step=number, reward=0.5, samples=4, tokens=40, seeding_s=1.0, waiting_s=0.5,
        training_s=2.0, weights_s=0.25, step_s=4.0, t_seed_s=1.0, n_prem=2, grad_norm=0.1, loss=0.0,
    )  # fmt: skip


def sentence(records: list[AnyRecord], *sets: str) -> str:
    made = reported(records, *sets).outcome
    assert made is not None
    return made.sentence


def closing(report: Report, tmp_path: Path) -> str:
    """The lines at the end of a run, with the codes of their colours."""
    out = io.StringIO()
    outcome.print_closing(report, RunDir(tmp_path), Console(file=out, force_terminal=True, width=200))
    return out.getvalue()


@pytest.mark.parametrize(
    ("first", "last", "problems", "word"),
    [
        (0.316, 0.926, 128, "rose"),
        (0.5, 0.2, 128, "fell"),
        (0.5, 0.55, 128, "stayed"),
        (0.5, 0.55, 12_800, "rose"),
        (0.0, 0.0, 4, "stayed"),
        (0.0, 0.25, 4, "stayed"),  # one answer
        (0.0, 0.75, 4, "rose"),
    ],
)
def test_reward_changed_only_when_chance_does_not_explain_it(
    first: float, last: float, problems: int, word: str
) -> None:
    made = reported(story(first, last, SERVES, END, problems=problems)).outcome
    assert made is not None
    assert (made.reward, made.reached) == (word, word == "rose")
    assert f"the held-out reward {word}" in made.sentence


@pytest.mark.parametrize(
    ("last", "variance", "word"), [(-30.0, 400.0, "rose"), (-39.0, 400.0, "stayed"), (-39.0, 1.0, "rose")]
)
def test_rewards_are_judged_by_their_own_variance(last: float, variance: float, word: str) -> None:
    records = [
        replace(one, variance=variance) if isinstance(one, Eval) else one
        for one in story(-40.0, last, SERVES, END, problems=64)
    ]
    made = reported(records).outcome
    assert made is not None
    assert made.reward == word


def test_only_a_complete_run_is_green(tmp_path: Path) -> None:
    reached = closing(reported(story(0.3, 0.9, SERVES, END)), tmp_path)
    assert "\x1b[1;32m  the held-out reward rose from 0.300 to 0.900" in reached
    for records in (
        story(0.3, 0.3, SERVES, END),
        story(0.9, 0.3, SERVES, END),
        story(0.3, 0.9, NONE, END),
        story(0.3, 0.9, SERVES),
    ):
        shown = closing(reported(records), tmp_path)
        assert "\x1b[1;33m" in shown
        assert "\x1b[1;32m" not in shown
    broken = closing(reported(story(0.3, 0.9, SERVES, BROKEN)), tmp_path)
    assert "\x1b[1;31m  invariants: 1 broken; the held-out reward rose" in broken


def test_unchecked_invariant_is_not_called_broken(tmp_path: Path) -> None:
    unchecked = replace(BROKEN, violations=["I2: cannot be checked: no journal"], unchecked=1)
    records = story(0.3, 0.9, SERVES, unchecked)
    made = reported(records)
    shown = closing(made, tmp_path)
    assert "\x1b[1;33m  invariants: 1 could not be checked; the held-out reward rose" in shown
    assert "broken" not in shown
    assert "not every invariant could be checked" in page_of(made, story_of(records), "")
    both = replace(unchecked, violations=[*BROKEN.violations, *unchecked.violations])
    assert "\x1b[1;31m  invariants: 1 broken, 1 could not be checked; " in closing(
        reported(story(0.3, 0.9, SERVES, both)), tmp_path
    )


def test_busy_steps_never_exceed_the_finished_steps(tmp_path: Path) -> None:
    samples = [sample(step) for step in (1, 2, 3)]  # 3: the last evaluation
    records = [*story(0.3, 0.9, SERVES, *samples), *(trained(number) for number in (1, 2)), END]
    assert "at work in 2 of 2 steps" in closing(reported(records), tmp_path)


def test_run_without_an_instance_shows_the_cause_everywhere(tmp_path: Path) -> None:
    records = story(0.3, 0.9, NONE, END)
    made = reported(records)
    assert made.instances is not None
    assert (made.instances.served, made.instances.first_s, made.instances.why) == (False, None, WHY)
    words = "no preemptible instance served"
    assert words in sentence(records)
    assert f"none served: {WHY}" in closing(made, tmp_path)
    page = page_of(made, story_of(records), "")
    assert words in page
    assert 'class="outcome open"' in page
    progress = Progress()
    restarts = [Restart(t_s=301, actor=f"spot-{n}/engine", cause="exit 1", incarnation=2) for n in range(9)]
    for record in [*records[:-1], *restarts]:
        progress.observe(record)
    panel = io.StringIO()
    Console(file=panel, width=200).print(render(progress, 300.0))
    assert "WARNING: no preemptible instance has served for 300 s" in panel.getvalue()
    plain = io.StringIO()
    show(records, "plain", plain)
    assert f"WARNING: no preemptible instance has served for 300 s: {WHY}" in plain.getvalue()


def test_run_without_requested_preemptible_hosts_misses_none() -> None:
    made = reported(story(0.3, 0.9, END), "fleet.n_prem_max=0")
    assert made.instances is None
    assert made.outcome is not None
    assert made.outcome.reached


def test_older_history_shows_instances_by_samples_alone() -> None:
    look = Sample(
        t_s=8, step=3, reserved=1, preemptible=2, serving=3, executing=4, pending=0, tokens_collected=9,
        migrations=0, tokens_per_s=1.0, busy=1,
    )  # fmt: skip
    made = reported(story(0.3, 0.9, look, *(trained(number) for number in (1, 2, 3)), END))
    assert made.instances is not None
    assert (made.instances.served, made.instances.busy_steps) == (True, 1)


def test_phases_are_named_in_panel_lines_and_records() -> None:
    plain, records = io.StringIO(), io.StringIO()
    announce("head", "plain", plain)
    announce("head", "json", records)
    assert plain.getvalue() == "starting the head and its hosts\n"
    assert json.loads(records.getvalue()) == {"kind": "phase", "t_s": 0.0, "phase": "head"}
    progress = Progress()
    phase = Phase(t_s=2.0, phase="evaluation")
    for record in [*story(0.3, 0.9)[:1], phase]:
        progress.observe(record)
    panel = io.StringIO()
    Console(file=panel, width=100).print(render(progress, 3.0))
    assert "evaluating on the held-out problems" in panel.getvalue()
    show([phase], "plain", plain)
    assert "[    2.0 s] evaluating on the held-out problems" in plain.getvalue()


def test_unfit_host_is_named_with_its_missing_need() -> None:
    out = io.StringIO()
    lacks = "engine.environment /srv/sglang: no such folder"
    show([Node(t_s=3, node="spot-1", role="preemptible", event="unfit", cause=lacks)], "plain", out)
    assert f"spot-1 cannot run its part of the job ({lacks})" in out.getvalue()


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[AnyRecord], CommandError | None], None]:
    """Make `rlctl run` write these records instead of driving a run, and end with this error."""

    def be(records: list[AnyRecord], ends: CommandError | None = None) -> None:
        async def drive(run: RunDir, config: Config, *_: object) -> list[object]:
            writer = HistoryWriter(run.history)
            for record in records:
                writer.write(record)
            writer.close()
            if ends is not None:
                raise ends
            return []

        monkeypatch.setattr("gleaner.rlctl.commands.run.drive", drive)
        monkeypatch.setattr("gleaner.rlctl.commands.run._model", lambda *_: None)

    return be


Driven = Callable[..., None]


def ran(tmp_path: Path, capsys: pytest.CaptureFixture[str], *sets: str) -> tuple[int, dict[str, object], str]:
    """Exit code, result and errors of `rlctl run --json`."""
    words = [word for text in sets for word in ("--set", text)]
    code = main(["run", "quickstart", "--json", "--runs-dir", str(tmp_path / "runs"), *words])
    output = capsys.readouterr()
    return code, json.loads(output.out.splitlines()[-1]), output.err


def test_run_without_an_instance_ends_well_and_reports_it(
    driven: Driven, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driven(story(0.3, 0.9, NONE, END))
    code, result, _ = ran(tmp_path, capsys)
    assert (code, result["exit_code"]) == (OK, OK)
    shown = result["outcome"]
    assert isinstance(shown, dict)
    assert shown["reached"] is False
    assert str(shown["sentence"]).startswith("no preemptible instance served")


def test_run_requiring_an_instance_has_its_own_exit_code(
    driven: Driven, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driven(story(0.3, 0.9, END))  # the run was over before it had waited for long enough
    code, result, output = ran(tmp_path, capsys, "fleet.require_instance=true")
    assert (code, result["exit_code"]) == (UNSERVED, UNSERVED)
    assert "error: no preemptible instance has served until the job's end (fleet.require_instance)" in output
    assert "rlctl resume" not in output, "a finished run cannot be resumed"


def test_job_failed_without_instance_is_resumable_with_own_code(
    driven: Driven, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driven([story(0.3, 0.9)[0], NONE], unserved("the job failed: no preemptible instance has served"))
    code, result, output = ran(tmp_path, capsys, "fleet.require_instance=true")
    assert (code, result["exit_code"]) == (UNSERVED, UNSERVED)
    assert result["errors"] == ["the job failed: no preemptible instance has served"]
    assert "rlctl resume" in output


UNJUDGED = Sample(
    t_s=2.0, step=1, reserved=1, preemptible=0, serving=1, executing=0, pending=0, tokens_collected=9,
    migrations=0, tokens_per_s=1.0, verdicts={"verifier_failed": 7, "lost": 1}, failure="ValueError: nothing",
)  # fmt: skip
NOTHING = "no sample was scored: lost 1, verifier_failed 7: ValueError: nothing"


def test_run_without_any_score_never_ends_well(
    driven: Driven, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driven(story(0.3, 0.9, SERVES, UNJUDGED, END))
    code, result, output = ran(tmp_path, capsys)
    assert (code, result["exit_code"]) == (UNSCORED, UNSCORED)
    assert f"error: {NOTHING}" in output
    shown, whole = result["outcome"], result["report"]
    assert isinstance(shown, dict)
    assert isinstance(whole, dict)
    assert str(shown["sentence"]).startswith(NOTHING)
    assert shown["reached"] is False
    assert whole["verdicts"] == {
        "counts": {"verifier_failed": 7, "lost": 1},
        "scored": False,
        "failure": "ValueError: nothing",
    }


def test_job_failed_by_verifier_is_resumable_with_own_code(
    driven: Driven, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driven([story(0.3, 0.9)[0], UNJUDGED], unscored("the job failed: the verifier has been sick for 30 s"))
    code, result, output = ran(tmp_path, capsys)
    assert (code, result["exit_code"]) == (UNSCORED, UNSCORED)
    assert "sick for 30 s" in output
    assert "rlctl resume" in output
    assert NOTHING in str(result["outcome"])


def test_verdict_counts_and_last_failure_are_always_shown() -> None:
    scored = replace(UNJUDGED, verdicts={"ok": 1000, "lost": 2}, failure="signal 9 (SIGKILL)")
    report = report_of(story(0.3, 0.9, SERVES, scored, END), None)
    assert report.verdicts is not None
    assert report.verdicts.scored
    assert report.outcome is not None
    assert "no sample was scored" not in report.outcome.sentence
    lines = dict(outcome.rows(report, RunDir(Path("/nowhere/x"))))
    assert lines["verdicts"] == "lost 2, ok 1,000"
    assert lines["last failed verdict"] == "signal 9 (SIGKILL)"
    progress = Progress()
    sick = Verifier(t_s=3.0, sick=True, why="20 of its last 20 verdicts failed (lost 20): no answer")
    for record in (*story(0.3, 0.9)[:1], scored, sick):
        progress.observe(record)
    shown = Console(width=160, record=True, file=io.StringIO())
    shown.print(render(progress, 4.0))
    text = shown.export_text()
    assert "2 lost   1,000 ok" in text
    assert "the verifier is sick: 20 of its last 20" in text
    assert "sick: 20 of its last 20" in (plain_line(progress, sick) or "")


def test_broken_promise_is_shown_in_the_result(
    driven: Driven, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driven(story(0.3, 0.9, SERVES, BROKEN), CommandError(FAILED, "no"))
    code, result, _ = ran(tmp_path, capsys)
    assert (code, result["exit_code"]) == (FAILED, FAILED)
