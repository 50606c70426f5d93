"""Exact jobs on real processes: one seed, once calm and once under kills.

The weights are the same bits, step for step.
"""

import pytest
from real_runs import MakeRun, RealRun

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.cluster import StepTrained
from gleaner.actors.rollout.state.events import GroupsTaken
from gleaner.actors.training.history import read_history
from gleaner.actors.training.records import Round
from gleaner.chaos.run_processes import AGENT, Proc
from gleaner.configs.schema import Training
from gleaner.rlctl.audit.invariants import step_of
from gleaner.rlctl.audit.run_files import gather
from gleaner.supervisor import JournalError
from gleaner.supervisor.journal.file import read_streams

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.realprocess, pytest.mark.timeout(900)]

STEPS, PROMPTS = 6, 16  # a kill takes a step, or two where that had just been done
SETTINGS = [
    "job.exact=true",
    "job.seed=7",
    f"job.steps={STEPS}",
    f"rollout.prompts={PROMPTS}",
    "rollout.max_new_tokens=128",
    "engine.slots=4",  # many waves a step: its groups are completed one after the other
]
FLOWING = 200  # tokens collected before a kill, so that work is in flight
FILES = ("model.safetensors", "trainer.safetensors")  # the weights; these with both moments of the optimizer


def roots(run: RealRun) -> dict[int, bytes]:
    """The root digest of the weights of each step."""
    trained = gather(run.run.path, run.run.config(), complete=True).trained
    assert all(isinstance(event, StepTrained) for event in trained)
    return {event.step: event.root for event in trained if isinstance(event, StepTrained)}


def attempts(run: RealRun) -> list[tuple[str, ...]]:
    """The instances that made each trained request, one after the other."""
    ledgers = gather(run.run.path, run.run.config(), complete=True).ledgers
    return [
        tuple(span.instance for span in request.spans)
        for ledger in ledgers
        if ledger.batch.startswith("step-")
        for request in ledger.requests
    ]


def final(run: RealRun) -> dict[str, bytes]:
    """The files of the last checkpoint."""
    checkpoint = run.run.checkpoints / f"step-{STEPS:06d}"
    return {name: (checkpoint / name).read_bytes() for name in FILES}


def in_mid_step(run: RealRun, after: int) -> int:
    """The incarnation of the trainer in the middle of a step, otherwise 0.

    It must be above `after`, and must have been given the first micro-batch of an unfinished step. (A short
    step is given to it as a whole, and it trains the step in parts.)
    """
    journal = run.run.head / "journal" / run.run.id / "rollout.sqlite"
    try:
        messages = read_streams(journal, [MANAGER])[MANAGER].messages
    except JournalError:
        return 0  # its writer was killed this moment and is not restarted yet
    taken = [one for one in messages if isinstance(one, GroupsTaken) and one.taker > after]
    newest = [one for one in taken if (one.batch, one.taker) == (taken[-1].batch, taken[-1].taker)]
    if not newest or step_of(newest[-1].batch) in (None, *run.steps()):
        return 0
    groups = {group for one in newest for group in one.groups}
    return newest[-1].taker if groups.issuperset(range(Training().micro_batch_groups)) else 0


def kill(run: RealRun, kind: str, node: str = "") -> Proc:
    """SIGKILL; its supervisor starts it again."""
    victim = run.one(kind, node)
    child = f"{victim.node}/{kind}"
    restarts = run.restarts(child)
    victim.kill()
    run.replaced(victim)
    run.wait(lambda: run.restarts(child) == restarts + 1, f"word of the restart of {victim}")
    return victim


def kill_in_mid_decode(run: RealRun, kind: str) -> Proc:
    """Kill while requests are being decoded."""
    run.until_tokens_flow(FLOWING)
    return kill(run, kind)


def kill_trainer_in_mid_step(run: RealRun, after: int = 0) -> int:
    """Kill while the trainer trains a step: its partial gradient is lost. Returns its incarnation, above
    `after`."""
    seen: list[int] = []
    run.wait(lambda: seen.append(in_mid_step(run, after)) or seen[-1], "a step that has begun")
    kill(run, "trainer")
    return seen[-1]


def test_weights_after_kills_equal_calm_run_bit_for_bit(make_run: MakeRun) -> None:
    calm, harried = make_run(*SETTINGS), make_run(*SETTINGS)
    calm.start()
    calm.wait(lambda: calm.events("joined") >= 3, "all hosts")
    harried.start()  # concurrently: exact weights do not depend on other runs
    harried.wait(lambda: harried.events("joined") >= 3, "all hosts")
    host = kill_in_mid_decode(harried, "engine").node
    killed = kill_trainer_in_mid_step(harried)
    kill_in_mid_decode(harried, "rollout")
    kill_trainer_in_mid_step(harried, after=killed)
    harried.until_tokens_flow(FLOWING)
    harried.one(AGENT, host).kill()
    harried.ends_whole()
    calm.ends_whole()

    assert calm.report.restarts == []
    assert harried.report.requests.migrated > 0
    assert harried.report.preemptions.killed == 1
    assert sum(len(made_by) > 1 for made_by in attempts(harried)) > 0, "no trained request was cut"
    assert attempts(harried) != attempts(calm)
    assert roots(harried) == roots(calm)
    assert sorted(roots(calm)) == list(range(1, STEPS + 1))
    assert final(harried) == final(calm)


def test_weights_of_rounds_after_kills_equal_calm_run_bit_for_bit(make_run: MakeRun) -> None:
    rounds = [*SETTINGS, "rounds.mode=tail", "rounds.prompts_factor=1.5"]
    calm, harried = make_run(*rounds), make_run(*rounds)
    calm.start()
    calm.wait(lambda: calm.events("joined") >= 3, "all hosts")
    harried.start()
    harried.wait(lambda: harried.events("joined") >= 3, "all hosts")
    host = kill_in_mid_decode(harried, "engine").node
    kill_in_mid_decode(harried, "rollout")
    kill_in_mid_decode(harried, "trainer")
    harried.until_tokens_flow(FLOWING)
    harried.one(AGENT, host).kill()
    harried.ends_whole()
    calm.ends_whole()

    kinds = [one.round for one in read_history(calm.run.history) if isinstance(one, Round)]
    assert kinds == ["short", "short", "long", "short", "short", "long"]
    assert harried.report.preemptions.killed == 1
    assert attempts(harried) != attempts(calm)
    assert roots(harried) == roots(calm)
    assert final(harried) == final(calm)
