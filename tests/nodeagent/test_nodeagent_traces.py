"""Traces: one tree for the effects of one message, across processes; nothing at all when they are off."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from gleaner.configs.schema import Traces
from gleaner.nodeagent.exit_codes import USAGE, CannotRun
from gleaner.nodeagent.traces import OpenTelemetryTracer, open_tracer
from gleaner.supervisor import Actor, AskFailed, Done, Message, Refused, handles
from gleaner.supervisor.testing import TestSystem


class Walk(Message, frozen=True):
    route: list[str] = []
    request: str = ""


class WalkAside(Message, frozen=True):
    """Sent without a reply by the last actor of a route."""


class Walker(Actor):
    """Asks the next actor of the route; the last one sends to `aside`, or refuses."""

    @handles(Walk)
    async def walk(self, message: Walk) -> None:
        if message.request == "refused":
            raise Refused("no further")
        if message.route:
            onward = Walk(route=message.route[1:], request=message.request)
            await self.ctx.ask(message.route[0], onward, deadline_s=60.0, expect=Done)
        else:
            self.ctx.note("arrival", request=message.request)
            await self.ctx.tell("aside", WalkAside())

    @handles(WalkAside)
    async def aside(self, message: WalkAside) -> None:
        return None


@dataclass
class Two:
    """Two processes, each with a tracer of its own; `spans` of both."""

    here: TestSystem
    there: TestSystem
    spans: InMemorySpanExporter

    async def named(self, *names: str) -> dict[str, ReadableSpan]:
        """The finished spans by name and actor, once those of `names` are among them."""
        async with asyncio.timeout(60.0):
            while True:
                found = {
                    f"{span.name} {(span.attributes or {})['gleaner.to']}": span
                    for span in self.spans.get_finished_spans()
                }
                if set(names) <= set(found):
                    return found
                await asyncio.sleep(0.01)


def tracer(spans: InMemorySpanExporter) -> OpenTelemetryTracer:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return OpenTelemetryTracer(provider)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    spans = InMemorySpanExporter()
    async with TestSystem(tmp_path) as here, TestSystem(tmp_path, node="there", join=here) as there:
        for system in (here, there):
            system.system.tracer = tracer(spans)
        for name, system in (("a", here), ("b", there), ("c", here), ("aside", there)):
            system.spawn(name, Walker)
        for name in ("b", "aside"):
            await here.system.resolve(name, 5.0)
        await there.system.resolve("c", 5.0)
        spans.clear()
        yield Two(here, there, spans)


async def test_chain_through_two_processes_is_one_trace_tree(two: Two) -> None:
    await two.here.ask("a", Walk(route=["b", "c"], request="r-7"), Done)
    spans = await two.named("handle WalkAside aside")
    chain = [
        *("ask Walk a", "handle Walk a", "ask Walk b", "handle Walk b", "ask Walk c", "handle Walk c"),
        *("tell WalkAside aside", "handle WalkAside aside"),
    ]
    ours = [spans[name] for name in chain]
    assert len({span.context.trace_id for span in ours}) == 1
    assert ours[0].parent is None
    for cause, effect in pairwise(ours):
        assert effect.parent is not None
        assert effect.parent.span_id == cause.context.span_id, f"{effect.name} is not under {cause.name}"
    assert {span.status.status_code for span in ours} == {StatusCode.UNSET}
    assert (ours[5].attributes or {})["message.request"] == "r-7"
    arrival = spans["note arrival c"]
    assert arrival.parent is not None
    assert arrival.parent.span_id == ours[5].context.span_id
    assert (arrival.attributes or {})["message.request"] == "r-7"
    assert (ours[4].attributes or {})["gleaner.source"] == "b"
    assert ours[0].start_time <= ours[5].start_time <= ours[5].end_time <= ours[0].end_time


async def test_failure_marks_every_span_on_its_path(two: Two) -> None:
    with pytest.raises(AskFailed):
        await two.here.ask("a", Walk(route=["b"], request="refused"), Done)
    await two.here.ask("a", Walk(), Done)
    found = two.spans.get_finished_spans()
    first = next(span for span in found if span.name == "ask Walk")
    failed = [span for span in found if span.context.trace_id == first.context.trace_id]
    assert {span.name for span in failed} == {"ask Walk", "handle Walk"}
    assert all(span.status.status_code is StatusCode.ERROR for span in failed)
    assert {(span.attributes or {})["error.type"] for span in failed} == {"Refused"}
    assert "no further" in str(failed[0].status.description)


async def test_process_without_a_tracer_forwards_the_trace(two: Two) -> None:
    two.there.system.tracer = None
    await two.here.ask("a", Walk(route=["b", "c"]), Done)
    spans = await two.named("handle Walk c")
    assert "handle Walk b" not in spans
    assert spans["handle Walk c"].parent is not None
    assert spans["handle Walk c"].parent.span_id == spans["ask Walk b"].context.span_id


async def test_invalid_trace_context_starts_a_new_trace(two: Two) -> None:
    span = tracer(two.spans).handle("a", Walk(), "not a traceparent")
    span.end()
    [finished] = two.spans.get_finished_spans()
    assert finished.parent is None
    assert span.trace.startswith(f"00-{finished.context.trace_id:032x}-")


async def test_spans_go_to_a_file_by_the_sample_ratio(tmp_path: Path) -> None:
    for ratio, expected in ((1.0, 1), (0.0, 0)):
        log = tmp_path / f"engine-{ratio}.log"
        opened = open_tracer(Traces(exporter="file", sample_ratio=ratio), "spot-1", "engine", log, 1 << 20)
        assert opened is not None
        span = opened.ask("a", "b", Walk(request="r-9"), "")
        span.end(TimeoutError("too late"))
        await opened.close()
        lines = log.with_suffix(".spans").read_text().splitlines()
        assert len(lines) == expected
    [line] = (tmp_path / "engine-1.0.spans").read_text().splitlines()
    decoded = json.loads(line)
    assert decoded["attributes"]["message.request"] == "r-9"
    assert decoded["resource"]["attributes"]["service.instance.id"] == "spot-1/engine"
    assert decoded["status"]["status_code"] == "ERROR"


def test_missing_package_is_reported_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.sampling", None)
    with pytest.raises(CannotRun, match=r"pip install 'gleaner\[traces\]'") as refused:
        open_tracer(Traces(exporter="console"), "n", "p", tmp_path / "p.log", 1)
    assert refused.value.code == USAGE
    assert open_tracer(Traces(), "n", "p", tmp_path / "p.log", 1) is None


def test_opentelemetry_is_not_imported_while_traces_are_off() -> None:
    code = (
        "import sys, gleaner.nodeagent.node, gleaner.nodeagent.process, gleaner.rlctl.__main__;"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60.0, check=False).returncode == 0
