"""Hangs: SIGSTOP for good to every kind of process of a real run.

One process is stopped at a time, while tokens flow. Each is replaced within its limit, the cause is reported,
and the run continues. A hang of the head ends the run, which is resumed.
"""

import signal
import time

import pytest
from real_runs import OPEN_ENDED, RELEASED_STEPS, MakeRun, RealRun

from gleaner.actors.training.history import Restart
from gleaner.chaos.run_processes import AGENT
from gleaner.rlctl.errors import FAILED
from gleaner.rlctl.run_driver import HEAD_SILENCES
from gleaner.supervisor.watch.health import BEATS

pytestmark = [
    pytest.mark.long, pytest.mark.alone, pytest.mark.realprocess, pytest.mark.timeout(1200),
]  # fmt: skip

FLOWING = 200  # tokens collected before a freeze, so that work is in flight
DEAD_S = 3.0
HUNG_S = 2 * DEAD_S
SLACK_S = 20.0  # to detect, to kill, and to start the next one on a busy machine
CAUSE = "SIGKILL (no heartbeat for "


def restarts(run: RealRun, child: str) -> list[str]:
    """Causes of the restarts of a child process, in order."""
    return [record.cause for record in run.look() if isinstance(record, Restart) and record.actor == child]


def freeze(run: RealRun, kind: str, node: str) -> float:
    """SIGSTOP while tokens flow, until another process has replaced it and a step has ended.

    Returns the time from the signal to the other process.
    """
    run.until_tokens_flow(FLOWING)
    victim, step, began_s = run.one(kind, node), run.steps()[-1], time.monotonic()
    children = victim.descendants()
    victim.signal(signal.SIGSTOP)
    run.gone([victim.process, *children], f"{victim} and its {len(children)} children")
    run.replaced(victim)
    took_s = time.monotonic() - began_s
    run.until_step_after(step, f"after the freeze of {victim}")
    print(f"{victim}: replaced after {took_s:.1f} s, a step after {time.monotonic() - began_s:.1f} s")
    assert HUNG_S - HUNG_S / BEATS <= took_s <= HUNG_S + SLACK_S  # from its last heartbeat on
    return took_s


def test_run_continues_when_a_process_hangs_for_good(make_run: MakeRun) -> None:
    run = make_run(OPEN_ENDED, f"liveness.dead_s={DEAD_S}")
    run.start()
    run.wait(lambda: run.steps(), "the first step")
    host = run.one("engine").node
    for kind, node in (
        ("rollout", "head"), ("reward", "head"), ("trainer", "reserved-1"), ("transfer", "reserved-1"),
        ("engine", host), ("transfer", host),
    ):  # fmt: skip
        freeze(run, kind, node)
        run.wait(lambda child=f"{node}/{kind}": restarts(run, child), f"word of the restart of {node}/{kind}")
        assert restarts(run, f"{node}/{kind}")[0].startswith(CAUSE)
    for node in ("reserved-1", host):
        freeze(run, AGENT, node)
        assert run.events("killed", node) == 1
        run.wait(lambda child=f"{node}/agent": restarts(run, child), f"word of the restart of {node}/agent")
        assert restarts(run, f"{node}/agent")[0].startswith(CAUSE)
    assert any("reserved-1 ended: SIGKILL (no heartbeat for " in line for line in run.warnings())

    head, began_s = run.one(AGENT, "head"), time.monotonic()
    head.signal(signal.SIGSTOP)
    assert run.ends() == FAILED
    took_s = time.monotonic() - began_s
    print(f"{head}: the run ended after {took_s:.1f} s")
    assert took_s <= HEAD_SILENCES * HUNG_S + SLACK_S
    assert f"ended with signal {CAUSE}" in run.output.read_text()
    run.wait_until_all_died()
    run.resume()
    run.until_step_after(run.steps()[-1] + RELEASED_STEPS, "after the freeze of the head")
    run.stops_whole()
