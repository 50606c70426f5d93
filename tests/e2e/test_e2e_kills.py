"""Kills: SIGKILL to every kind of process, one at a time in one run.

Tokens flow meanwhile. The run always continues.
"""

import pytest
from real_runs import OPEN_ENDED, RELEASED_STEPS, SHORT, MakeRun, RealRun

from gleaner.chaos.run_processes import AGENT, FORKS

pytestmark = [pytest.mark.alone, pytest.mark.realprocess, pytest.mark.timeout(900)]

FLOWING = 200  # tokens collected before a kill, so that work is in flight


def kill_and_see_it_come_back(run: RealRun, kind: str, node: str = "") -> str:
    """SIGKILL while tokens flow; the children of the process die with it.

    Its supervisor restarts it and reports why, and the run continues: another step ends.
    """
    run.until_tokens_flow(FLOWING)
    victim = run.one(kind, node)
    child = f"{victim.node}/{kind}"
    restarts, step = run.restarts(child), run.steps()[-1]
    children = victim.descendants()
    victim.kill()
    run.gone([victim.process, *children], f"{victim} and its {len(children)} children")
    run.replaced(victim)
    run.wait(lambda: run.restarts(child) == restarts + 1, f"word of the restart of {victim}")
    run.until_step_after(step, f"after the end of {victim}")
    return victim.node


def kill_host(run: RealRun, node: str) -> None:
    """SIGKILL to a node agent: the whole host is lost."""
    run.until_tokens_flow(FLOWING)
    agent = run.one(AGENT, node)
    children = agent.descendants()
    assert {"transfer", "engine"} <= {word for child in children for word in child.cmdline()}
    agent.kill()
    run.gone([agent.process, *children], f"{node} and its children")
    run.wait(lambda: run.events("killed", node) == 1, f"word of the end of {node}")


@pytest.mark.long
def test_run_keeps_promises_when_a_process_is_killed(make_run: MakeRun) -> None:
    run = make_run(OPEN_ENDED, SHORT)
    run.start()
    run.wait(lambda: run.steps(), "the first step")

    host = kill_and_see_it_come_back(run, "engine")
    for node in (host, "head"):  # the next children there are executed
        run.one(FORKS, node).kill()
    kill_and_see_it_come_back(run, "rollout")
    kill_and_see_it_come_back(run, "reward")
    kill_and_see_it_come_back(run, "transfer", host)
    kill_and_see_it_come_back(run, "transfer", "reserved-1")
    kill_and_see_it_come_back(run, "trainer")
    kill_host(run, host)
    run.until_tokens_flow(FLOWING)
    run.until_step_after(run.steps()[-1] + RELEASED_STEPS, f"after the end of {host}")

    run.stops_whole()
    restarts = {(one.actor, one.cause): one.count for one in run.report.restarts}
    victims = {f"{host}/engine", f"{host}/transfer", "head/rollout", "head/reward"}
    victims |= {"reserved-1/trainer", "reserved-1/transfer"}
    assert {child: restarts.get((child, "SIGKILL")) for child in victims} == dict.fromkeys(victims, 1)
    assert run.report.preemptions.killed == 1
    assert run.report.requests.migrated > 0
    assert len(run.incarnations(f"{host}/engine")) > 1  # every killed process works again
    assert len(run.incarnations("reserved-1/engine")) > 1
