"""Metrics of a host: each is documented, bounded, and derived from reports of its processes."""

import asyncio
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from real_nodes import Nodes

from gleaner.nodeagent.exit_codes import IN_USE, USAGE, CannotRun
from gleaner.nodeagent.files import ProcessFile, find_process, publish_process
from gleaner.nodeagent.metrics import BY_NAME, MAX_ACTORS, MAX_FIGURES, METRICS, families
from gleaner.nodeagent.metrics_server import MetricsServer, Seen, look, metrics_address
from gleaner.supervisor import Actor
from gleaner.supervisor.inspection.link_figures import COUNTED
from gleaner.supervisor.inspection.vitals import ASK_BOUNDS_S
from gleaner.supervisor.system_messages import ActorState, LinkFigures, ProcessVitals, SystemState
from gleaner.supervisor.testing import TestSystem
from gleaner.transport.wire import Peer

DOC = Path(__file__).parents[2] / "docs" / "metrics.md"


def row(name: str, **more: object) -> ActorState:
    fields: dict[str, object] = {
        "incarnation": 5, "state": "running", "mailbox": 3, "mailbox_limit": 1024, "handled": 100,
        "dropped": 2, "restarts": 1, "last_failure": "", "waits": 1, "oldest_wait_s": 0.5,
        "figures": {"open": 4, "share": 0.25, "mood": "good"}, **more,
    }  # fmt: skip
    return ActorState(name=name, **fields)  # type: ignore[arg-type]


def process(*actors: ActorState) -> SystemState:
    vitals = ProcessVitals(
        now_s=9.0, lag_s=0.02, waits=1, oldest_wait_s=0.5, ask_counts=[1] * (len(ASK_BOUNDS_S) + 1),
        ask_sum_s=2.5, ask_failed={"AskTimeout": 3}, recoveries={"ask sent again": 2},
        cpu_s=7.0, rss_bytes=1000, files=12,
    )  # fmt: skip
    links = LinkFigures(states={"up": 2}, unacked=3, waiting=1, totals=dict.fromkeys(COUNTED, 9))
    return SystemState(
        node="spot-1", process="engine", pid=7, endpoint="", actors=list(actors), refused={"bad-field": 1},
        dead_letters={"no such actor": 6}, expired_waits={"answer": 4}, suspects={"tcp://x": 2.0},
        vitals=vitals, links=links,
    )  # fmt: skip


def samples(*states: SystemState, silent: list[tuple[str, str]] | None = None) -> dict[str, float]:
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in families(states, silent or [])
        for sample in family.samples
    }


def test_page_lists_exactly_the_metrics() -> None:
    written = re.findall(
        r"^\| `(gleaner_\w+)` \| (\w+) \| ([\w, ]+) \| (.+) \|$", DOC.read_text(), re.MULTILINE
    )
    assert written == [(it.name, it.kind, ", ".join(it.labels), it.help) for it in METRICS]


def test_every_metric_has_samples_from_process_reports() -> None:
    found = {
        sample.name: family
        for family in families([process(row("spot-1/engine"))], [("spot-1", "transfer")])
        for sample in family.samples
    }
    assert {name.removesuffix("_bucket").removesuffix("_count") for name in found} - {
        "gleaner_ask_seconds_sum"
    } == set(BY_NAME)
    found_values = samples(process(row("a")), silent=[("spot-1", "transfer")])
    place = "('node', 'spot-1'), ('process', 'engine')"
    assert found_values[f"gleaner_process_up[{place}]"] == 1
    assert found_values["gleaner_process_up[('node', 'spot-1'), ('process', 'transfer')]"] == 0
    assert found_values[f"gleaner_handled_total[('actor', 'a'), {place}]"] == 100
    assert found_values[f"gleaner_figure[('actor', 'a'), ('figure', 'share'), {place}]"] == 0.25
    assert f"gleaner_figure[('actor', 'a'), ('figure', 'mood'), {place}]" not in found_values
    assert found_values[f"gleaner_ask_seconds_bucket[('le', '+Inf'), {place}]"] == len(ASK_BOUNDS_S) + 1
    assert found_values[f"gleaner_ask_seconds_sum[{place}]"] == 2.5
    assert found_values[f"gleaner_dead_letters_total[{place}, ('reason', 'no such actor')]"] == 6


def test_child_process_has_its_restarts_and_no_mailbox() -> None:
    found_values = samples(process(row("engine", pid=77)))
    assert [name.partition("[")[0] for name in found_values if "'actor', 'engine'" in name] == [
        "gleaner_restarts_total"
    ]


def test_series_are_bounded_and_keep_their_sums() -> None:
    crowd = [row(f"actor-{n}", figures={f"f{m}": m for m in range(100)}) for n in range(MAX_ACTORS + 500)]
    found_values = samples(process(*crowd))
    handled = {
        name: value for name, value in found_values.items() if name.startswith("gleaner_handled_total")
    }
    assert len(handled) == MAX_ACTORS + 1
    assert sum(handled.values()) == 100 * len(crowd)
    assert len([name for name in found_values if "'actor-1')" in name]) < 16 + MAX_FIGURES


@pytest.mark.parametrize("text", ["", "9464", "0.0.0.0:9464", "[::]:9464", "*:1", "127.0.0.1:", "a:99999"])
def test_metrics_address_must_be_explicit(text: str) -> None:
    with pytest.raises(CannotRun) as refused:
        metrics_address(text)
    assert refused.value.code == USAGE
    assert "--metrics" in str(refused.value)
    assert metrics_address("[::1]:0") == ("::1", 0)
    assert metrics_address("10.0.0.7:9464") == ("10.0.0.7", 9464)


async def test_scrape_shows_the_host_and_a_silent_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.nodeagent.metrics_server.FRESH_S", 600.0)
    async with (
        TestSystem(tmp_path, node="spot-1") as agent,
        TestSystem(tmp_path, node="spot-1-child", join=agent) as child,
    ):
        child.spawn("spot-1/engine", Actor)
        children = {"engine": child.system.wire.local, "transfer": None, "gone": Peer("loop://gone")}

        async def seen() -> Seen:
            return await look(agent.system, children)

        server = MetricsServer(("127.0.0.1", 0), seen)
        with pytest.raises(CannotRun) as taken:
            MetricsServer(("127.0.0.1", int(server.url.rpartition(":")[2].partition("/")[0])), seen)
        assert taken.value.code == IN_USE
        text = await asyncio.to_thread(scraped, server.url)
        again = await asyncio.to_thread(scraped, server.url)
        await server.close()
        with pytest.raises(OSError, match="refused"):
            await asyncio.to_thread(scraped, server.url)
    assert text == again, "answers are shared for a while"
    parsed = {
        (sample.name, sample.labels["process"], sample.labels.get("actor", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert parsed["gleaner_process_up", "transfer", ""] == 0
    assert parsed["gleaner_process_up", "gone", ""] == 0
    assert parsed["gleaner_mailbox_messages", "test", "spot-1/engine"] == 0
    assert parsed["gleaner_mailbox_messages", "test", "registry"] == 0


def scraped(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60.0) as answer:
        text: str = answer.read().decode()
        return text


def test_address_of_an_earlier_child_is_not_reused(tmp_path: Path) -> None:
    publish_process(tmp_path, "engine", ProcessFile(endpoint="tcp://127.0.0.1:5", public_key="k", pid=11))
    assert find_process(tmp_path, "engine", 11) == Peer("tcp://127.0.0.1:5", "k")
    assert find_process(tmp_path, "engine", 12) is None
    assert find_process(tmp_path, "trainer", 11) is None


@pytest.mark.realprocess
def test_node_agent_serves_its_metrics_until_it_stops(nodes: Nodes) -> None:
    head = nodes.start("head", "--role", "head", "--metrics", "127.0.0.1:0")
    text = scraped(head.metrics)
    assert 'gleaner_process_up{node="head",process="agent"} 1.0' in text
    assert 'gleaner_handled_total{actor="cluster/scheduler",node="head",process="agent"}' in text
    resident = re.search(r'gleaner_process_resident_bytes\{node="head",process="agent"\} (\S+)', text)
    assert resident is not None
    assert float(resident[1]) > 1e7
    nodes.processes["head"].terminate()
    assert nodes.processes["head"].wait(60.0) == 0
    with socket.socket() as probe, pytest.raises(OSError, match="refused"):
        probe.connect(("127.0.0.1", int(head.metrics.rpartition(":")[2].partition("/")[0])))
    code, output = nodes.fails("other", "--role", "head", "--metrics", "0.0.0.0:9464")
    assert code == USAGE
    assert "name one address" in output
