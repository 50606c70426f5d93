"""The bench of the token plane: its pure parts, and a tiny run of our side."""

import json
import math
from dataclasses import asdict, replace

import pytest

from bench import page_sections
from bench.token_plane import figure, manager_rate, memory, page, router
from bench.token_plane.fake_worker import STAMP, STAMP_ZERO, event
from bench.token_plane.goals import OURS, PARSED, PASSED, goals
from bench.token_plane.memory import MemoryUse
from bench.token_plane.sizes import Sizes, SystemResult


def found(system: str, rate: float, rows: int = 64) -> SystemResult:
    return SystemResult(system, rows, tokens_per_s=rate, cpu_s_per_m=1.0, p50_ms=20.0, p99_ms=30.0)


def results() -> dict[str, object]:
    return {
        "began": "2026-01-01T00:00:00+00:00",
        "took_s": 100,
        "machine": {"cpu": "Abacus", "load before the run": "2.50"},
        "sizes": asdict(Sizes()),
        "found": [
            asdict(one)
            for one in (found(OURS, 2e6), found(PARSED, 5e4), found(PASSED, 5e5), found(OURS, 9.0, 1))
        ],
        "memory": [asdict(MemoryUse(1000, 900.0, 8.1)), asdict(MemoryUse(100_000, refused="too many"))],
    }


def test_goals_use_figures_of_the_same_run() -> None:
    verdicts = [goal.met for goal in goals([found(OURS, 2e6), found(PARSED, 5e4), found(PASSED, 5e5)])]
    assert verdicts == [True, False, True]
    assert [goal.met for goal in goals([found(OURS, 9e5)])] == [None, None, False]
    assert goals([found(OURS, 2e6, rows=1)]) == []


def test_section_shows_results_and_that_machine_was_busy() -> None:
    text = page.text(results())
    assert "| 64 | gleaner | 2,000,000 | 1.00 | - | 20.0 | 30.0 | - | - |" in text
    assert "| 20 times the parsed path | 2,000,000 | 1,000,000 | met |" in text
    assert "| 5 times the pass-through | 2,000,000 | 2,500,000 | NOT met |" in text
    assert "busy with other work" in text
    assert "refused: too many" in text


def test_plot_has_a_line_per_system(tmp_path) -> None:
    assert figure.write(results(), tmp_path).read_bytes().startswith(b"\x89PNG")


def test_bench_replaces_only_its_section_of_the_page(tmp_path) -> None:
    file = tmp_path / "benchmarks.md"
    file.write_text("# Page\n")
    page_sections.put(file, "one", "first")
    page_sections.put(file, "two", "second")
    page_sections.put(file, "one", "again")
    text = file.read_text()
    assert text.startswith("# Page\n")
    assert "first" not in text
    assert text.index("again") < text.index("second")
    assert "again" in page_sections.kept(file)
    assert "# Page" not in page_sections.kept(file)


def test_fake_worker_event_is_one_token_in_one_chunk() -> None:
    before, behind = event(3)
    size, _, rest = (before + STAMP % 12345 + behind).partition(b"\r\n")
    chunk = rest.removesuffix(b"\r\n")
    assert int(size, 16) == len(chunk)
    answer = json.loads(chunk.removeprefix(b"data: "))
    assert answer["output_ids"] == [2931]
    assert answer["meta_info"]["output_token_logprobs"] == [[pytest.approx(-0.04), 2931, None]]
    assert answer["meta_info"]["sent_ns"] - STAMP_ZERO == 12345


def test_router_without_environment_is_none(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GLEANER_BENCH_ROUTER", str(tmp_path / "python"))
    assert router.environment() is None


def test_memory_of_a_request_in_flight_is_measured() -> None:
    held = memory.measure(64)
    assert not held.refused
    assert 100 < held.bytes_per_request < 100_000
    assert 7.9 < held.bytes_per_token < 100  # a token id and a log-prob, four bytes each


def test_production_manager_absorbs_tokens_of_all_instances(tmp_path) -> None:
    (one,) = manager_rate.measure(replace(Sizes.quick(), rows=(16,)), tmp_path)
    assert (one.system, one.rows) == (OURS, 16)
    assert one.tokens_per_s > 0
    assert 0 < one.p50_ms <= one.p99_ms
    assert one.cpu_s_per_m > 0
    assert not math.isnan(one.full_p99_ms)
