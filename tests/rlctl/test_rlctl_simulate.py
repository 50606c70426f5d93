"""`rlctl simulate`: the cost of a job elsewhere, before anything is rented."""

import asyncio
import json
import os
import re
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from gleaner.actors.protocol.rollout import BatchLedger
from gleaner.actors.training.history import HistoryWriter
from gleaner.actors.training.records import Step
from gleaner.configs import trace
from gleaner.configs.load import dump, load
from gleaner.configs.schema import Config
from gleaner.rlctl import simulate_page
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.audit.journal_evidence import LEDGER
from gleaner.rlctl.commands import simulate as command
from gleaner.rlctl.errors import CommandError
from gleaner.rlctl.quantity_format import short
from gleaner.rlctl.report.model import story_of
from gleaner.rlctl.simulate import Progress, Simulated, Stop, baseline_of, simulate
from gleaner.rlctl.what_if import figures_of, in_model_tokens
from gleaner.rlctl.what_if_plots import offers, time_unit, tokens_per_unit
from gleaner.rlctl.what_if_setup import WhatIfOptions, rig_of, scaled_down, setting_of
from gleaner.sim.cluster import SimCluster
from gleaner.sim.loop import SpinsForever
from gleaner.sim.models.hardware import assumptions
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.run_setup import RunSetup
from gleaner.supervisor import SqliteJournal

TINY = [
    "job.steps=2",
    "task.heldout_problems=4",
    "rollout.prompts=8",
    "rollout.samples=2",
    "engine.slots=4",
    "fleet.trace=",
]
HEADER = "t_seconds,event,instance_id\n"


def tiny(*more: str) -> RunSetup:
    return RunSetup(load("quickstart", [*TINY, *more]), seed=3)


def words_of(*sets: str) -> list[str]:
    return ["simulate", "quickstart", *[word for text in (*TINY, *sets) for word in ("--set", text)]]


@pytest.fixture(scope="module")
def ended() -> Simulated:
    """A job that ran to its end."""
    return simulate("job", tiny(), Stop(), lambda _: None)


def test_job_is_compared_with_one_without_preemptible_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "spot.csv"
    file.write_text(f"{HEADER}0,add,n1\n0,add,n2\n1,remove,n1\n")
    argv = [
        *words_of("job.steps=4", "rollout.max_new_tokens=512"),
        "--trace",
        str(file),
        "--notice",
        "0.3",
        "--json",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(argv) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(one["run"], one["number"]) for one in shown[:-1]} == {("job", 1), ("co-located", 2)}
    job, alone = shown[-1]["runs"]["job"], shown[-1]["runs"]["co-located"]
    assert (job["ended"], alone["ended"]) == ("done", "done")
    assert job["figures"]["tokens"] == alone["figures"]["tokens"] > 0
    assert job["figures"]["instances"] > alone["figures"]["instances"] == 0
    assert job["figures"]["noticed"] == 1
    assert job["figures"]["tokens_per_s"] > alone["figures"]["tokens_per_s"]
    page = (tmp_path / "out" / "simulate.html").read_text()
    for text in ("T_seed at the end", "on offer", "trained tokens", "tokens/USD", "co-located", "spot.csv"):
        assert text in page
    assert page.count("<svg") == 5
    assert json.loads((tmp_path / "out" / "simulate.json").read_text())["runs"]["job"] == job


def test_page_goes_to_new_folder_named_by_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words_of("job.steps=1"), "--no-baseline", "--runs-dir", str(tmp_path)]) == 0
    (page,) = (tmp_path / "what-if").glob("quickstart-0-*/simulate.html")
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"page with plots: {page}"
    for row in ("throughput", "T_seed at the end", "instances in use", "tokens for the money", "training"):
        assert f"  {row}" in out
    assert "▁" in out or "█" in out


@pytest.mark.parametrize(
    ("argv", "code", "problem"),
    [
        (
            ["nowhere.toml"],
            2,
            "no such file; name a TOML file or a preset (onehost, quickstart, rlboost-14b, sglang)",
        ),
        (["quickstart", "--reserved", "h900"], 2, "'h900' is no known device; known are h100, h200"),
        (["quickstart", "--preemptible", "8 h100"], 2, "expected NAME, NAMExDEVICES or NAMExDEVICES:tpN"),
        (["quickstart", "--reserved", "h100x3:tp2"], 2, "3 devices cannot be cut into groups of 2"),
        (["quickstart", "--model", "qwen4"], 2, "'qwen4' is no known model; known are qwen3-0_6b"),
        (["quickstart", "--trace", "nowhere.csv"], 2, "nowhere.csv: cannot be read: No such file"),
        (["quickstart", "--trace", "{bad}"], 2, "bad.csv:1: expected the header t_seconds,event,instance_id"),
        (["quickstart", "--trace", "{head}"], 2, "head is the name of another host; rename the instance"),
        (["quickstart", "--trace", "{client}"], 2, "client is the name of another host"),
        (["quickstart", "--set", "fleet.trace=", "--notice", "30"], 2, "--notice goes with a trace"),
        (["quickstart", "--notice", "-1"], 2, "--notice -1: expected 0 or more"),
        (["quickstart", "--lengths", "many"], 2, "expected MEDIAN,SIGMA,CORRELATION"),
        (["quickstart", "--token-scale", "0"], 2, "expected a scale from 1"),
        (["quickstart", "--gbit", "0"], 2, "--gbit 0: expected more than 0"),
        (["quickstart", "--fit", "nobody", "--runs-dir", "{here}"], 3, "no runs; start one with"),
        (["quickstart", "--set", "rollout.prompt=3"], 2, "rollout.prompts"),
    ],
)
def test_impossible_simulation_is_refused_with_advice(
    argv: list[str], code: int, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "bad": "time,what\n0,add\n",
        "head": f"{HEADER}0,add,head\n",
        "client": f"{HEADER}0,add,client\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)
    places = {"here": str(tmp_path), **{name: str(tmp_path / f"{name}.csv") for name in files}}
    assert main(["simulate", *[word.format(**places) for word in argv]]) == code
    seen = capsys.readouterr()
    assert problem in seen.err
    assert seen.err.startswith("error: ")
    assert not seen.out


def test_ctrl_c_ends_it_and_shows_partial_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def press(_: object, at: Progress) -> None:
        if at.step >= 1 and not asked:
            asked.append(at.step)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(command._Shown, "progress", press)
    before = signal.getsignal(signal.SIGINT)
    assert main([*words_of("job.steps=1000"), "--out", str(tmp_path)]) == 130
    assert signal.getsignal(signal.SIGINT) is before
    out = capsys.readouterr().out
    assert f"{asked[0]} of 1000 in " in out
    assert "job: stopped" in out
    assert "co-located" not in out
    assert "job: stopped" in (tmp_path / "simulate.html").read_text()


def test_immediate_stop_gives_a_page_too() -> None:
    stop = Stop()
    stop.asked = True
    setting = tiny()
    done = simulate("job", setting, stop, lambda _: None)
    asked = simulate_page.RequestText(setting.config, WhatIfOptions(), None)
    assert "job: stopped" in simulate_page.page_of(asked, [done])
    assert any("0 of 2" in line for line in simulate_page.rows_of(asked, [done]))


def test_spinning_process_ends_run_with_partial_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = SimCluster.advance

    def advance(cluster: SimCluster, until_s: float) -> bool:
        if plain(cluster, until_s) or sum(isinstance(it, Step) for it in cluster.history) >= 1:
            raise SpinsForever("5000001 turns at 7 s, and no end")
        return False

    monkeypatch.setattr(SimCluster, "advance", advance)
    done = simulate("job", tiny("job.steps=50"), Stop(), lambda _: None)
    assert (done.outcome.ended, done.figures.steps >= 1) == ("failed", True)
    assert "a defect of ours" in done.outcome.reason
    assert "5000001 turns" in done.outcome.reason


def test_first_step_already_estimates_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long step has no finished step to extrapolate from for minutes; its responses give the estimate."""
    monkeypatch.setattr(
        "gleaner.rlctl.simulate.FASTER", 1.0
    )  # pieces of a second, however fast the machine is
    seen: list[Progress] = []
    long = ["job.steps=1", "rollout.prompts=32", "rollout.samples=8"]
    done = simulate("job", tiny(*long), Stop(), seen.append)
    shown = [at for at in seen if at.step == 0 and at.left_s is not None]
    assert shown
    assert all(0 <= at.left_s <= 20 * at.wall_s for at in shown if at.left_s is not None)
    assert done.figures.steps == 1


def test_progress_shows_share_done_and_time_left() -> None:
    seen: list[Progress] = []
    simulate("job", tiny("job.steps=3"), Stop(), seen.append)
    assert [at.step for at in seen] == sorted(at.step for at in seen)
    assert seen[0].left_s is None
    assert all(at.left_s is not None for at in seen if at.step)
    assert seen[-1].left_s == 0.0
    assert all(later.virtual_s > at.virtual_s for at, later in pairwise(seen))


def test_figures_sum_step_parts_and_hourly_prices(ended: Simulated) -> None:
    figures = ended.figures
    assert figures.parts is not None
    parts = figures.parts
    assert parts.step_s == pytest.approx(
        parts.seeding_s + parts.waiting_s + parts.training_s + parts.weights_s + parts.other_s
    )
    prices = ended.outcome.config.prices
    hour = prices.reserved_per_hour + figures.instances * prices.preemptible_per_hour
    assert figures.cost == pytest.approx(hour * figures.training_s / 3600)
    values = tokens_per_unit(story_of(ended.records), ended.outcome.config)
    assert values[-1] == pytest.approx(figures.tokens_per_unit)


def test_message_tokens_are_converted_to_model_tokens(ended: Simulated) -> None:
    records = in_model_tokens(ended.outcome.history, 10)
    scaled = figures_of(records, ended.outcome.config)
    assert scaled.tokens == 10 * ended.figures.tokens
    looks, plain = story_of(records).samples, story_of(ended.outcome.history).samples
    assert [look.tokens_per_s for look in looks] == [10 * look.tokens_per_s for look in plain]
    assert scaled.migrations == ended.figures.migrations


def test_baseline_differs_in_its_hosts_alone() -> None:
    setting = tiny()
    alone = baseline_of(setting)
    assert alone.preemptible_hosts() == []
    assert (alone.seed, alone.config.job, alone.job_model) == (
        setting.seed,
        setting.config.job,
        setting.job_model,
    )


def test_machines_are_named_by_device_count_and_group() -> None:
    host_devices = rig_of("--reserved", "h100x8:tp2")
    assert (host_devices.name, host_devices.devices, host_devices.tp) == ("h100", 8, 2)
    for wrong in ("h100x3:tp2", "h1000", "x8", ""):
        with pytest.raises(CommandError, match="--reserved"):
            rig_of("--reserved", wrong)


def test_model_that_does_not_fit_is_refused_first() -> None:
    words = WhatIfOptions(model="qwen3-32b", reserved="t4", preemptible="t4")
    with pytest.raises(CommandError, match="raise tp or take a larger device"):
        setting_of(load("rlboost-14b"), words)


def test_token_scale_divides_lengths() -> None:
    config = load("rlboost-14b")
    scaled = scaled_down(config, 64)
    assert scaled.rollout.max_new_tokens * 64 == config.rollout.max_new_tokens
    with pytest.raises(ValueError, match="token scale of 20000"):
        scaled_down(config, 20_000)


def test_hosts_removed_by_the_trace_get_a_notice(tmp_path: Path) -> None:
    file = tmp_path / "spot.csv"
    file.write_text(f"{HEADER}0,add,n1\n10,remove,n1\n")
    setting = setting_of(load("quickstart", [*TINY, f"fleet.trace={file}"]), WhatIfOptions(notice_s=4.0))
    assert setting.trace is not None
    assert [(event.t_s, event.event) for event in setting.trace.events] == [
        (0.0, "add"), (6.0, "notice"), (10.0, "remove"),
    ]  # fmt: skip


def test_axes_use_readable_units() -> None:
    assert [time_unit(span_s)[1] for span_s in (0.0, 200.0, 3000.0, 20_000.0)] == [
        "seconds", "seconds", "minutes", "hours",
    ]  # fmt: skip
    assert [short(value) for value in (0.0, 999.0, 12_500.0, 3.1e6)] == ["0", "999", "12.5k", "3.1M"]
    rows = f"{HEADER}0,add,a\n5,add,b\n5,remove,a\n9,remove,b\n"
    assert offers(trace.parse(rows, "t.csv"), [0.0, 4.0, 5.0, 9.0]) == [1, 1, 1, 0]


@pytest.mark.long
def test_what_if_starts_from_a_measured_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The measured run is a simulated one, on machines three times as slow as the assumed ones."""
    sets = [*TINY, "job.steps=8", "rollout.prompts=8", "rollout.samples=4", "rollout.max_new_tokens=1024"]
    usual = assumptions("cpu_core")
    slow = HostDevices(
        "cpu_core",
        assumed=msgspec.structs.replace(
            usual,
            step_overhead_s=3 * usual.step_overhead_s,
            request_overhead_s=3 * usual.request_overhead_s,
            micro_batch_overhead_s=3 * usual.micro_batch_overhead_s,
        ),
    )
    setting = replace(
        setting_of(load("quickstart", sets), WhatIfOptions(token_scale=16)), reserved=slow, preemptible=slow
    )
    measured = simulate("job", setting, Stop(), lambda _: None)
    run = kept_run(tmp_path, load("quickstart", sets), measured, token_scale=16)
    options = [word for text in sets for word in ("--set", text)]
    argv = ["simulate", "quickstart", *options, "--token-scale", "16", "--no-baseline", "--json"]
    assert main([*argv, "--fit", str(run)]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert any("ms a request; median error" in note for note in shown["notes"])
    (median,) = [found[1] for note in shown["notes"] if (found := re.search(r"median (\d+) tokens", note))]
    assert int(median) == pytest.approx(0.4 * 1024, rel=0.25)
    predicted, parts = shown["runs"]["job"]["figures"]["parts"], measured.figures.parts
    assert parts is not None
    assert predicted["step_s"] == pytest.approx(parts.step_s, rel=0.2)
    assert predicted["training_s"] == pytest.approx(parts.training_s, rel=0.2)


def kept_run(folder: Path, config: Config, measured: Simulated, token_scale: int) -> Path:
    """A run's folder with the files that `--fit` reads: settings, history, the ledger of released batches."""
    run = folder / "quickstart-20261121-000000-abcd"
    run.mkdir()
    (run / "config.toml").write_text(dump(config))
    writer = HistoryWriter(run / "history.jsonl")
    for record in measured.records:
        writer.write(record)
    writer.close()
    (kept,) = [stream for stream in measured.outcome.streams if stream.name == LEDGER]
    ledgers = [
        msgspec.structs.replace(
            message,
            requests=tuple(
                msgspec.structs.replace(request, count=request.count * token_scale)
                for request in message.requests
            ),
        )
        for message in kept.content.messages
        if isinstance(message, BatchLedger)
    ]

    async def write() -> None:
        store = SqliteJournal(run / "nodes" / "head" / "journal" / run.name / "rollout.sqlite", commit_s=0.0)
        store.open(LEDGER, 1)
        await store.append(LEDGER, 1, ledgers)
        await store.close()

    asyncio.run(write())
    return run
