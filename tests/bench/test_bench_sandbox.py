"""The bench of sandboxed programs runs the stated programs."""

import json

import pytest

from bench.reward import sandbox


@pytest.mark.parametrize("call", ["f", ""])
def test_unisolated_programs_run_the_same_tests(call: str) -> None:
    results = json.loads(sandbox.forked(sandbox.payload(call, 3)))
    assert [text.strip() for _, text, _ in results] == ["2", "4", "6"]


def test_every_isolation_runs_equally_often_after_a_warm_up() -> None:
    called: list[str] = []

    def way(name: str) -> sandbox.Runs:
        def runs(asked: bytes) -> bytes:
            called.append(name)
            return asked

        return runs

    took = sandbox.each({"a": way("a"), "b": way("b")}, b"", 2)
    assert called == (["a"] * sandbox.IN_A_ROW + ["b"] * sandbox.IN_A_ROW) * 3
    assert set(took) == {"a", "b"}
