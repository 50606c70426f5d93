"""The report of a run: its figures, and a self-contained page."""

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gleaner.actors.training.history import (
    AnyRecord,
    End,
    Eval,
    HistoryError,
    HistoryWriter,
    Node,
    Restart,
    Run,
    Sample,
    Step,
)
from gleaner.configs.load import ConfigError, dump
from gleaner.configs.schema import Config, Prices
from gleaner.rlctl import runs
from gleaner.rlctl.outcome import rows
from gleaner.rlctl.quantity_format import duration
from gleaner.rlctl.report import make, plots
from gleaner.rlctl.report.model import report_of, story_of

CONFIG = Config(prices=Prices(reserved_per_hour=10.0, preemptible_per_hour=1.0, currency="EUR"))


def run(t_s: float = 0.0, steps: int = 3) -> Run:
    return Run(t_s=t_s, run_id="r-1", seed=5, steps=steps, config=msgspec.to_builtins(CONFIG))


def node(t_s: float, name: str, event: str, role: str = "preemptible") -> Node:
    return msgspec.convert({"kind": "node", "t_s": t_s, "node": name, "role": role, "event": event}, Node)


def step(number: int, t_s: float, reward: float = 0.5) -> Step:
    return Step(
        t_s=t_s, step=number, reward=reward, samples=4, tokens=40, seeding_s=1.0, waiting_s=0.5,
        training_s=2.0, weights_s=0.25, step_s=4.0, t_seed_s=1.0, n_prem=2, grad_norm=0.1, loss=0.0,
    )  # fmt: skip


def sample(t_s: float, tokens: int, migrations: int) -> Sample:
    return Sample(
        t_s=t_s, step=1, reserved=1, preemptible=2, serving=3, executing=4, pending=0,
        tokens_collected=tokens, migrations=migrations, tokens_per_s=9.0,
    )  # fmt: skip


def end(t_s: float, ok: bool = True, violations: tuple[str, ...] = ()) -> End:
    return End(
        t_s=t_s, tokens_collected=120, tokens_lost=0, tokens_generated_twice=0, requests_migrated=7, ok=ok,
        violations=list(violations),
    )  # fmt: skip


WHOLE: list[AnyRecord] = [
    run(),
    Eval(t_s=1, step=0, when="first", reward=0.2, problems=128),
    node(0, "reserved-1", "joined", "reserved"),
    node(0, "a", "joined"),
    node(0, "b", "joined"),
    sample(5, 60, 2),
    step(1, 10),
    node(900, "a", "killed"),
    Restart(t_s=901, actor="trainer", cause="SIGKILL", incarnation=2),
    Restart(t_s=902, actor="reward", cause="ValueError: <script>", incarnation=2),
    Restart(t_s=903, actor="trainer", cause="SIGKILL", incarnation=3),
    step(2, 1000),
    node(1700, "b", "noticed"),
    node(1750, "b", "drained"),
    node(1800, "b", "left"),
    node(1800, "a", "joined"),
    step(3, 2000, reward=0.75),
    Eval(t_s=3599, step=3, when="last", reward=0.9, problems=128),
    end(3600),
]


def folder_of(tmp_path: Path, records: list[AnyRecord], config: str = "") -> Path:
    writer = HistoryWriter(tmp_path / "history.jsonl")
    for record in records:
        writer.write(record)
    writer.close()
    if config:
        (tmp_path / "config.toml").write_text(config)
    return tmp_path


def test_finished_run_reports_its_history() -> None:
    report = report_of(WHOLE, CONFIG)
    assert (report.run_id, report.seed, report.steps, report.wall_s) == ("r-1", 5, 3, 3600)
    assert (report.finished, report.ok) == (True, True)
    assert (report.reward.first, report.reward.last, report.reward.per_step) == (0.2, 0.9, [0.5, 0.5, 0.75])
    assert (report.tokens.collected, report.tokens.lost, report.tokens.generated_twice) == (120, 0, 0)
    assert report.requests.migrated == 7
    assert (report.preemptions.killed, report.preemptions.noticed) == (1, 1)
    assert [(one.actor, one.count) for one in report.restarts] == [("trainer", 2), ("reward", 1)]


def test_cost_is_stay_of_each_host_times_price() -> None:
    cost = report_of(WHOLE, CONFIG).cost
    assert cost is not None
    assert cost.reserved == 10.0  # one host, one hour
    assert cost.preemptible_hours == pytest.approx((900 + 1800 + 1800) / 3600)
    assert cost.preemptible == pytest.approx(1.25)
    assert cost.total == pytest.approx(11.25)
    assert cost.at_reserved_price == pytest.approx(22.5)
    assert cost.currency == "EUR"


def test_unfinished_run_is_reported_without_guesses() -> None:
    report = report_of(WHOLE[:7], CONFIG)
    assert (report.finished, report.ok, report.reward.last) == (False, None, None)
    assert (report.tokens.lost, report.tokens.generated_twice) == (None, None)
    assert (report.tokens.collected, report.requests.migrated) == (60, 2)
    assert report_of(WHOLE[:7], None).cost is None


def test_resume_ends_stays_and_repeated_step_counts_once() -> None:
    records: list[AnyRecord] = [
        run(), node(0, "a", "joined"), step(1, 10), step(2, 20), run(20), node(30, "a", "joined"),
        step(2, 40, reward=0.9), node(50, "a", "killed"), step(3, 60),
    ]  # fmt: skip
    story = story_of(records)
    assert [(life.from_s, life.to_s) for life in story.lives] == [(0, 20), (30, 50)]
    report = report_of(records, CONFIG)
    assert report.reward.per_step == [0.5, 0.9, 0.5]
    assert report.resumes == 1


def test_end_before_a_resume_is_not_final() -> None:
    assert report_of([run(), step(1, 5), end(6), run(7), step(2, 9)], None).finished is False


def test_killed_host_counts_as_noticed_after_a_notice() -> None:
    records: list[AnyRecord] = [
        run(), node(0, "a", "joined"), node(1, "a", "noticed"), node(2, "a", "noticed"),
        node(3, "a", "killed"), node(4, "a", "joined"), node(5, "a", "killed"),
        node(6, "r", "joined", "reserved"), node(7, "r", "killed", "reserved"),
    ]  # fmt: skip
    preemptions = report_of(records, None).preemptions
    assert (preemptions.killed, preemptions.noticed) == (1, 1)


def test_withdrawn_notice_does_not_count() -> None:
    records: list[AnyRecord] = [
        run(), node(0, "a", "joined"), node(1, "a", "noticed"), node(2, "a", "drained"),
        node(3, "a", "spared"), node(9, "a", "killed"),
    ]  # fmt: skip
    preemptions = report_of(records, None).preemptions
    assert (preemptions.killed, preemptions.noticed) == (1, 0)
    (life,) = story_of([*records, run(12)]).lives
    assert (life.to_s, life.ended) == (9, "killed")


class Outside(HTMLParser):
    """Collects everything that a browser would fetch, and checks that elements close in order."""

    VOID = frozenset({"meta", "br", "path", "use"})

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe", "image", "object"):
            self.fetched.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.fetched.append(f"{name}={value}")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page_of(folder: Path) -> tuple[str, Outside]:
    html = (folder / "report.html").read_text()
    outside = Outside()
    outside.feed(html)
    assert outside.open == []
    assert outside.fetched == []
    assert "url(http" not in html
    assert "@import" not in html
    return html, outside


def test_page_is_self_contained_and_shows_the_numbers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, WHOLE, dump(CONFIG))
    report = make(folder)
    assert msgspec.convert(json.loads((folder / "report.json").read_text()), type(report)) == report
    html, outside = page_of(folder)
    text = " ".join(outside.text)
    for expected in (
        "every invariant held",
        "0.20 → 0.90",
        "11.2500 EUR",
        "ValueError: <script>",
        "trainer",
        "killed",
    ):
        assert expected in text
    assert html.count("<svg") == 5
    assert not re.search("#0000[0-9a-f]{2}", html)  # every colour comes from the page's scheme
    assert "prefers-color-scheme: dark" in html


def test_page_shows_stairs_and_widths_of_a_run_that_has_them(tmp_path: Path) -> None:
    one = structs.replace(step(1, 5), stair_s=0.625, half_s=0.375, width=4)
    make(folder_of(tmp_path, [run(steps=2), one, step(2, 9), end(10)]))
    text = " ".join(page_of(tmp_path)[1].text)
    assert "half of the engines left" in text
    assert "width" in text
    assert all(shown in text.split() for shown in ("0.62", "0.38", "4"))
    make(folder_of(tmp_path, [run(steps=2), step(1, 5), step(2, 9), end(10)]))
    assert "half of the engines left" not in " ".join(page_of(tmp_path)[1].text)


def test_violations_are_shown_as_text(tmp_path: Path) -> None:
    make(folder_of(tmp_path, [run(), step(1, 5), end(6, ok=False, violations=("I2: token 3 & 4",))]))
    assert "I2: token 3 & 4" in page_of(tmp_path)[1].text


def test_rewards_of_several_tasks_are_shown(tmp_path: Path) -> None:
    first = Eval(t_s=1, step=0, when="first", reward=0.2, problems=8, tasks={"sums": 0.125, "words": 0.25})
    last = Eval(t_s=9, step=1, when="last", reward=0.9, problems=8, tasks={"sums": 0.875, "words": None})
    made = make(folder_of(tmp_path, [run(steps=1), first, step(1, 5), last, end(10)]))
    assert made.reward.tasks == {"sums": (0.125, 0.875), "words": (0.25, None)}
    shown = " ".join(page_of(tmp_path)[1].text)
    assert "Reward, sums" in shown
    assert "Reward, words" in shown


@pytest.mark.parametrize(
    "records",
    [
        [],
        [run(steps=1)],
        [run(steps=1), step(1, 2)],
        [run(), Eval(t_s=1, step=0, when="first", reward=-3.0, problems=1)],
        [run(), node(3, "a", "joined")],
        [run(), sample(1, 0, 0)],
        [node(1, "ghost", "killed"), node(1, "ghost", "drained"), end(1)],
    ],
)
def test_odd_histories_make_a_page(tmp_path: Path, records: list[AnyRecord]) -> None:
    make(folder_of(tmp_path, records))
    assert any(word in " ".join(page_of(tmp_path)[1].text) for word in ("has not ended", "Ended"))


def test_long_run_makes_a_page_of_bounded_size(tmp_path: Path) -> None:
    records: list[AnyRecord] = [run(steps=3000)]
    for index in range(3000):
        t_s = index * 10.0
        records += [
            node(t_s, f"n{index % 40}", "joined"),
            sample(t_s, index, index),
            step(index + 1, t_s + 1),
        ]
        records.append(node(t_s + 5, f"n{index % 40}", "killed"))
    make(folder_of(tmp_path, records))
    assert (tmp_path / "report.html").stat().st_size < 3_200_000
    page_of(tmp_path)


def test_missing_history_and_damaged_config_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="no such file"):
        make(tmp_path)
    with pytest.raises(ConfigError, match=r"config\.toml"):
        make(folder_of(tmp_path, WHOLE, "[job\n"))


def test_ids_of_different_pictures_are_distinct() -> None:
    story = story_of(WHOLE)
    found = [
        set(re.findall(r' id="(p[0-9a-f]+|m[0-9a-f]+)"', picture(story)))
        for picture in (plots.reward_plot, plots.fleet_plot, plots.step_time_plot)
    ]
    assert all(found)
    assert not (found[0] & found[1] | found[1] & found[2] | found[0] & found[2])


def test_durations_are_readable() -> None:
    assert [duration(s) for s in (0, 59.6, 245, 3599, 3660)] == [
        "0 s",
        "1 min 00 s",
        "4 min 05 s",
        "59 min 59 s",
        "1 h 01 min",
    ]


events = st.sampled_from(["joined", "left", "killed", "noticed", "drained", "spared"])
moments = st.lists(st.tuples(st.floats(0, 50), st.sampled_from("ab"), events) | st.none(), max_size=20)


@settings(max_examples=60)
@given(moments)
def test_stays_never_overlap_nor_outlast_the_run(
    made: list[tuple[float, str, str] | None],
) -> None:
    now, records = 0.0, list[AnyRecord]([run()])
    for moment in made:
        if moment is None:
            records.append(run(now))
        else:
            now += moment[0]
            records.append(node(now, moment[1], moment[2]))
    story = story_of(records)
    for name in "ab":
        lives = [life for life in story.lives if life.node == name]
        assert all(0 <= life.from_s <= life.to_s <= story.end_s for life in lives)
        assert all(first.to_s <= second.from_s for first, second in itertools.pairwise(lives))


def with_waste() -> list[AnyRecord]:
    look = msgspec.structs.replace(sample(1999, 100, 7), busy=1, wasted={"dropped": 30, "aborted": 0})
    last = msgspec.structs.replace(WHOLE[-1], wasted={"dropped": 30})
    return sorted([*WHOLE[:-1], look, last], key=lambda record: record.t_s)


def test_account_shows_step_price_token_price_and_waste() -> None:
    account = report_of(with_waste(), CONFIG).account
    assert account is not None
    assert account.cost == pytest.approx(11.25)
    assert account.per_step == pytest.approx(11.25 / 3)
    assert account.per_million_tokens == pytest.approx(11.25 / 120 * 1e6)
    assert account.wasted == {"dropped": 30}
    assert account.wasted_share == pytest.approx(30 / 120)
    assert [one.step for one in account.each_step] == [1, 2, 3]
    assert account.each_step[1].reserved == pytest.approx(990 / 3600 * 10)  # from the end of the step before
    parts = {"seeding", "waiting", "training", "weights", "recovery", "evaluation", "other"}
    assert set(account.reserved.parts_hours) == parts


def test_page_has_the_account(tmp_path: Path) -> None:
    make(folder_of(tmp_path, with_waste(), dump(CONFIG)))
    page = (tmp_path / "report.html").read_text()
    assert "EUR a million trained tokens" in page
    assert "Tokens wasted: dropped" in page
    assert 'aria-label="Cost of each step and tokens wasted"' in page


def pulled(t_s: float, delta: int, whole: int) -> Sample:
    """Versions so far; each image has 1000 bytes, each delta 10."""
    weights = {
        "delta_versions": delta,
        "delta_bytes": 10 * delta,
        "whole_versions": whole,
        "whole_bytes": 1000 * whole,
        "image_bytes": 1000 * (delta + whole),
    }
    return msgspec.structs.replace(sample(t_s, 0, 0), weights=weights)


def test_delta_bytes_are_summed_over_manager_lives(tmp_path: Path) -> None:
    looks = [sample(0.5, 0, 0), pulled(1, 0, 2), pulled(2, 3, 2), pulled(3, 1, 0), pulled(4, 2, 1)]
    found = report_of([run(), *looks], CONFIG).weights
    assert found is not None
    assert (found.delta_versions, found.whole_versions) == (5, 3)
    assert (found.delta_bytes, found.whole_bytes, found.image_bytes) == (50, 3000, 8000)
    folder = runs.create(tmp_path, CONFIG)
    expected = dict(rows(report_of([run(), *looks], CONFIG), folder))["weights pulled"]
    assert expected == "5 versions as what changed (50 B), 3 whole (2.9 KiB); 62% of the bytes spared"
    assert report_of([run(), sample(1, 0, 0)], CONFIG).weights is None


def test_step_times_include_gaps_in_older_histories() -> None:
    times = report_of(WHOLE, CONFIG).step_times
    assert [one.step_s for one in times] == [4, 990, 1000], "4 s of each were recorded"
    assert [one.other_s for one in times] == pytest.approx([0.25, 986.25, 996.25])


def with_recovery() -> list[AnyRecord]:
    """Step 2 lost its trainer, then the whole run was stopped and resumed, then the step ended."""
    again = msgspec.structs.replace(step(2, 60), step_s=50.0, recovery_s=40.0, evaluation_s=3.0)
    return [
        run(), node(0, "a", "joined"), step(1, 10),
        Restart(t_s=20, actor="reserved-1/trainer", cause="SIGKILL", incarnation=2),
        run(30), Restart(t_s=40, actor="head/rollout", cause="exit 1", incarnation=2), again,
        step(3, 70),
    ]  # fmt: skip


def test_step_keeps_its_restarts_over_a_resume() -> None:
    report = report_of(with_recovery(), CONFIG)
    assert [(one.step, one.restarts, one.recovery_s) for one in report.step_times] == [
        (1, 0, 0.0),
        (2, 2, 40.0),
        (3, 0, 0.0),
    ]
    assert report.resumes == 1
    assert sum(one.count for one in report.restarts) == 2


def test_recovery_has_cost_colour_and_column(tmp_path: Path) -> None:
    account = report_of(with_recovery(), CONFIG).account
    assert account is not None
    assert account.reserved.parts_hours["recovery"] == pytest.approx(40 / 3600)
    assert account.each_step[1].reserved == pytest.approx(50 / 3600 * 10)
    make(folder_of(tmp_path, with_recovery(), dump(CONFIG)))
    page = (tmp_path / "report.html").read_text()
    assert "var(--recovery)" in page
    assert '<th class="number">Recovery</th>' in page
    assert "--recovery:" in page, "the colour named by the picture"


def test_restarts_are_marked_on_timeline_and_steps() -> None:
    story = story_of(with_recovery())
    for picture, names in (
        (plots.fleet_plot(story), ("reserved-1/trainer", "head/rollout", "restarted")),
        (plots.step_time_plot(story), ("recovery", "evaluation", "restarts")),
    ):
        assert "var(--restart)" in picture
        assert all(f">{name}</text>" in picture for name in names)
    calm = story_of([run(), step(1, 4), step(2, 8)])
    assert "restart" not in plots.step_time_plot(calm)
    assert "recovery" not in plots.step_time_plot(calm)


def test_closing_lines_show_the_cost_of_recovery(tmp_path: Path) -> None:
    lines = dict(rows(report_of(with_recovery(), CONFIG), runs.RunDir(tmp_path)))
    assert lines["restarts"] == "2; recovery took 40 s (62% of the steps' time)"
    calm = report_of([run(), step(1, 4), step(2, 8)], CONFIG)
    assert dict(rows(calm, runs.RunDir(tmp_path)))["restarts"] == "0"
