"""The board of `top`: rates from two samples, sorted actors, fitted tables."""

import io

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from gleaner.nodeagent.cluster_view import Processes
from gleaner.rlctl.board import SORTS, Board, Meter, render
from gleaner.rlctl.columns import MIN_LAST, Column, Styled, fitted
from gleaner.supervisor.system_messages import ActorState, ProcessVitals, SystemState


def actor(name: str, handled: int = 0, **more: object) -> ActorState:
    row = ActorState(
        name=name, incarnation=1, state="running", mailbox=0, handled=handled, dropped=0, restarts=0,
        last_failure="", mailbox_limit=100,
    )  # fmt: skip
    return msgspec.structs.replace(row, **more)


def process(node: str, now_s: float, cpu_s: float, *actors: ActorState, lag_s: float = 0.0) -> SystemState:
    vitals = ProcessVitals(
        now_s=now_s, lag_s=lag_s, waits=2, oldest_wait_s=1.5, ask_counts=[], ask_sum_s=0.0, cpu_s=cpu_s,
        rss_bytes=64_000_000,
    )  # fmt: skip
    return SystemState(
        node=node, process="agent", pid=1, endpoint="", actors=list(actors), refused={},
        dead_letters={"no such actor": 3}, vitals=vitals,
    )  # fmt: skip


def drawn(what: RenderableType, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(what)
    return out.getvalue().splitlines()


def test_rates_use_two_samples_and_restart_per_incarnation() -> None:
    meter = Meter()
    first = meter.observe(
        Processes([process("head", 10.0, 1.0, actor("a", 100, rate=7.0), actor("b", 5))], [])
    )
    assert first.processes[0].cpu is None
    assert first.rate == 7.0, "before a second sample the process's own rate is shown"
    reborn = actor("b", 900, incarnation=2, rate=1.0)
    second = meter.observe(Processes([process("head", 12.0, 2.0, actor("a", 160), reborn)], []))
    assert second.processes[0].cpu == 0.5
    assert [line.rate for line in second.actors] == [30.0, 1.0]


def test_actors_are_sorted_as_requested_and_rest_counted() -> None:
    rows = [actor(f"a{n}", mailbox=n, restarts=50 - n, rate=float(n % 7), waits=1) for n in range(50)]
    board = Meter().observe(Processes([process("head", 1.0, 0.0, *rows, lag_s=2.0)], ["spot-9/agent"]))
    for sort, first in (("mailbox", "a49"), ("restarts", "a0"), ("rate", "a13"), ("name", "a0")):
        lines = drawn(render(board, sort, 120, 20), 120)
        begin = next(n for n, line in enumerate(lines) if "ACTOR" in line and "MAILBOX" in line)
        assert lines[begin + 1].split()[1] == first, sort
        assert len(lines) <= 20
        assert "more actors" in lines[-1]
    text = "\n".join(lines)
    assert "no answer from spot-9/agent" in text
    assert "2000 ms" in text
    assert "64 MB" in text


def test_next_plan_is_shown_beside_last_step_times() -> None:
    figures: dict[str, str | int | float] = {
        "state": "running", "t_seed_s": 12.5, "n_prem": 4, "measured_s": 61.0, "predicted_s": 58.0
    }  # fmt: skip
    scheduler = msgspec.structs.replace(actor("cluster/scheduler"), figures=figures)
    board = Meter().observe(Processes([process("head", 1.0, 0.0, scheduler)], []))
    text = "\n".join(drawn(render(board, "rate", 120), 120))
    assert "T_seed 12.5 s   N_prem 4   last step 61.0 s   next step predicted 58.0 s" in text


def test_timeouts_are_shown_for_a_job_that_adapts_them() -> None:
    figures: dict[str, str | int | float] = {
        "timeouts_cut": 40, "timeouts_audited": 3, "timeout_would_have_passed": 1, "anchors": 900
    }  # fmt: skip
    for shown in ({}, figures):
        proxy = msgspec.structs.replace(actor("reward/proxy"), figures=shown)
        board = Meter().observe(Processes([process("head", 1.0, 0.0, proxy)], []))
        text = "\n".join(drawn(render(board, "rate", 120), 120))
        line = "timeouts: 40 programs cut   1 of 3 audited right   900 tests with an anchor"
        assert (line in text) == bool(shown)
        assert ("timeouts:" in text) == bool(shown)


@given(st.integers(20, 200), st.integers(9, 60), st.integers(0, 30), st.sampled_from(list(SORTS)))
def test_view_fits_any_terminal_and_shows_sort_column(
    width: int, height: int, actors: int, sort: str
) -> None:
    rows = [actor(f"rollout/manager-{n}", last_failure="x" * 300) for n in range(actors)]
    board = Meter().observe(Processes([process("head", 1.0, 0.0, *rows)], ["s" * 300]))
    lines = drawn(render(board, sort, width, height), width)
    assert all(len(line) <= width for line in lines)
    if width >= 60:
        assert len(lines) <= height
        assert any("▾" in line for line in lines)


def test_empty_board_is_drawn() -> None:
    assert "0 actors" in drawn(render(Board([], []), "rate", 80), 80)[0]


COLUMNS = (Column("A"), Column("B", spare=2), Column("C", spare=1), Column("LAST"))


def test_columns_are_dropped_in_order_and_last_is_cut() -> None:
    rows = [("a" * 10, "b" * 10, "c" * 10, "l" * 50)]
    assert drawn(fitted(COLUMNS, rows, 200), 200)[0].split() == ["A", "B", "C", "LAST"]
    assert drawn(fitted(COLUMNS, rows, 50), 50)[0].split() == ["A", "B", "C", "LAST"]
    assert drawn(fitted(COLUMNS, rows, 40), 40)[0].split() == ["A", "C", "LAST"]
    assert drawn(fitted(COLUMNS, rows, 30), 30)[0].split() == ["A", "LAST"]
    cut = drawn(fitted(COLUMNS, rows, 10 + 2 + MIN_LAST), 24)
    assert cut[1].split() == ["a" * 10, "l" * (MIN_LAST - 1) + "…"]


@given(
    st.lists(st.lists(st.text("ab ", max_size=30), min_size=4, max_size=4), max_size=5), st.integers(1, 90)
)
def test_no_line_is_wider_than_the_terminal(rows: list[list[str]], width: int) -> None:
    assert all(len(line) <= width for line in drawn(fitted(COLUMNS, rows, width), width))


def test_cut_cells_keep_style_and_hold_no_codes() -> None:
    made = fitted(
        [Column("A"), Column("LAST")], [("漢字", Styled("bad\x1b[2J\n" + "l" * 20, "bold red"))], 20
    )
    assert made.text(styled=False) == "A     LAST\n漢字  bad?[2J?lllll…\n"
    assert "\x1b[1;31mbad?[2J?lllll…\x1b[0m\n" in made.text(styled=True)
    assert drawn(made, 20) == made.text(styled=False).splitlines()


def test_job_cost_is_shown_above_its_processes() -> None:
    figures = {
        "step": 3,
        "cost": 0.25,
        "currency": "EUR",
        "cost_per_million_tokens": 12.5,
        "tokens_wasted": 1200,
    }
    rows = [actor("training/controller", figures=figures), actor("rollout/manager", figures={"batches": 1})]
    board = Meter().observe(Processes([process("head", 1.0, 0.0, *rows)], []))
    lines = drawn(render(board, "name", 120, 20), 120)
    expected = "job step 3   0.2500 EUR   12.5000 a million trained tokens   1,200 tokens wasted"
    assert [line.strip() for line in lines[1:2]] == [expected]
    assert len(lines) <= 20
