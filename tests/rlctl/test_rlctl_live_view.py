"""Live progress of a run: its figures, and their display in each mode."""

import io
import json
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gleaner.actors.training.history import (
    AnyRecord,
    End,
    Eval,
    HistoryWriter,
    Node,
    Restart,
    Run,
    Sample,
    Step,
)
from gleaner.rlctl.live_view import follow, render, show, sparkline
from gleaner.rlctl.progress import RECENT_EVENTS, Progress, plain_line


def step(number: int, t_s: float, reward: float = 0.5, step_s: float = 10.0) -> Step:
    return Step(
        t_s=t_s, step=number, reward=reward, samples=4, tokens=40, seeding_s=1.0, waiting_s=0.5,
        training_s=2.0, weights_s=0.2, step_s=step_s, t_seed_s=1.0, n_prem=2, grad_norm=0.1, loss=0.0,
    )  # fmt: skip


RUN = Run(t_s=0, run_id="r-1", seed=5, steps=4, config={})
SAMPLE = Sample(
    t_s=11, step=1, reserved=1, preemptible=2, serving=3, executing=44, pending=6, tokens_collected=123456,
    migrations=7, tokens_per_s=890.0,
)  # fmt: skip
KILL = Node(t_s=12, node="spot-1", role="preemptible", event="killed")
NOTICE = Node(t_s=13, node="spot-2", role="preemptible", event="noticed")
RESTART = Restart(t_s=14, actor="trainer", cause="SIGKILL", incarnation=2)
END = End(t_s=50, tokens_collected=99, tokens_lost=0, tokens_generated_twice=0, requests_migrated=7, ok=True)
STORY: list[AnyRecord] = [
    RUN,
    Eval(t_s=5, step=0, when="first", reward=0.25, problems=128),
    step(1, 15),
    SAMPLE,
    KILL,
    NOTICE,
    RESTART,
    step(2, 25, reward=0.6),
    END,
]


def observed(records: list[AnyRecord]) -> Progress:
    progress = Progress()
    for record in records:
        progress.observe(record)
    return progress


def drawn(progress: Progress, now_s: float, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(render(progress, now_s))
    return out.getvalue()


def test_progress_counts_events() -> None:
    progress = observed(STORY)
    assert (progress.steps_done, progress.steps_planned) == (2, 4)
    assert (progress.killed, progress.noticed, progress.restarts) == (1, 1, 1)
    assert (progress.heldout_first, list(progress.rewards)) == (0.25, [0.5, 0.6])
    assert [text for _, text in progress.events] == [
        "spot-1 was killed",
        "spot-2 got its notice",
        "trainer restarted (SIGKILL)",
    ]
    assert progress.end == END


def test_time_left_shrinks_and_is_unknown_before_first_step() -> None:
    assert observed([RUN]).left_s() is None
    progress = observed([RUN, step(1, 15), step(2, 25)])
    assert progress.left_s(25) == 20
    assert progress.left_s(29) == 16
    assert progress.left_s(500) == 10  # a step that takes too long does not use up the next one's time


def test_resume_continues_from_the_last_progress() -> None:
    progress = observed([*STORY, msgspec.structs.replace(RUN, t_s=60)])
    assert progress.end is None
    assert progress.steps_done == 2
    assert progress.left_s(60) == 20


def test_plain_mode_writes_lines_without_control_codes() -> None:
    out = io.StringIO()
    show(STORY, "auto", out)  # a StringIO is no terminal
    lines = out.getvalue().splitlines()
    assert len(lines) == len(STORY) - 1  # all but the sample
    assert "\x1b" not in out.getvalue()
    assert "step 2/4  reward 0.600" in out.getvalue()
    assert "3 hosts  7 migrated  about 20 s left" in out.getvalue()
    assert lines[-1].endswith(
        "99 tokens collected, 0 lost, 0 generated twice, 7 requests migrated; every invariant held"
    )


def test_violations_are_shown_at_the_end() -> None:
    broken = msgspec.structs.replace(END, ok=False, violations=["I1: request 3 trained twice"])
    progress = observed([RUN, broken])
    assert "broken: I1: request 3 trained twice" in (plain_line(progress, broken) or "")


def test_json_mode_writes_one_object_per_record() -> None:
    out = io.StringIO()
    show(STORY, "json", out)
    assert [json.loads(line)["kind"] for line in out.getvalue().splitlines()] == [
        type(record).__name__.lower() for record in STORY
    ]


def test_live_mode_draws_panel_and_leaves_the_outcome() -> None:
    out = io.StringIO()
    progress = show(STORY, "live", out)
    assert progress.steps_done == 2
    assert "every invariant held" in out.getvalue()


def test_panel_fits_narrow_terminal_and_shows_main_figures() -> None:
    text = drawn(observed(STORY[:-1]), 29)
    for part in (
        *("r-1", "2/4", "about 16 s left", "held-out 0.250", "890/s", "123,456 collected"),
        *("1 reserved + 2 preemptible", "44 executing", "7 migrations", "spot-1 was killed"),
    ):
        assert part in text
    assert "cost" in text
    assert "a million trained tokens" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "starting" in drawn(Progress(), 0)
    assert "50 s   ended" in drawn(observed(STORY), 1e9)
    assert "last checks" in drawn(observed([RUN, step(4, 40)]), 41)
    traceback = msgspec.structs.replace(RESTART, cause="ValueError\n" * 500)
    assert len(drawn(observed([RUN, traceback]), 20).splitlines()) < 20


def test_following_stops_at_the_end_record(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "h.jsonl")
    waiting: list[AnyRecord] = list(STORY)

    def grow(_: float) -> None:
        writer.write(waiting.pop(0))

    assert list(follow(tmp_path / "h.jsonl", lambda: True, sleep=grow)) == STORY
    writer.close()


def test_following_a_gone_run_reads_its_last_records(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "h.jsonl")
    answers = iter([True, False])

    def alive() -> bool:
        answer = next(answers)
        if not answer:
            writer.write(KILL)
        return answer

    writer.write(RUN)
    assert list(follow(tmp_path / "h.jsonl", alive, sleep=lambda _: None)) == [RUN, KILL]
    assert list(follow(tmp_path / "none.jsonl", lambda: False, sleep=lambda _: None)) == []
    writer.close()


@given(st.lists(st.floats(-1, 1), max_size=90))
def test_sparkline_keeps_the_length_and_order_of_values(values: list[float]) -> None:
    line = sparkline(values)
    assert len(line) == min(len(values), 40)
    if values:
        shown = values[-40:]
        assert line[shown.index(max(shown))] >= line[shown.index(min(shown))]


@given(st.lists(st.sampled_from(STORY), max_size=60))
def test_any_order_of_records_is_shown_with_bounded_memory(records: list[AnyRecord]) -> None:
    progress = observed(records)
    assert len(progress.events) <= RECENT_EVENTS
    assert drawn(progress, progress.t_s)
