"""Evidence read from the real journals of manager, StateManager and controller."""

import array
import shutil
import sqlite3
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gleaner.actors.cluster.checkpoint_store import CheckpointStore
from gleaner.actors.names import CONTROLLER, MANAGER, REWARD, STATE
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.cluster import StepTrained, TrainedSample
from gleaner.actors.protocol.rollout import BatchLedger
from gleaner.actors.reward.journal import VerdictGiven
from gleaner.actors.rollout.journal.journaled_state import ManagerSnapshot, ledger_of
from gleaner.actors.rollout.state.events import BatchReleased, Dispatched, FrameLogged, InstanceJoined, Scored
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.training.job_journal import JobProgress, JobSnapshot, StepFinished
from gleaner.actors.training.problem_order import ProblemOrder
from gleaner.configs.load import load
from gleaner.configs.schema import Config
from gleaner.rlctl.audit.invariants import INVARIANTS, State, audit, states
from gleaner.rlctl.audit.run_files import COMMIT_FILE, LEDGER, REGISTRY, gather
from gleaner.supervisor import Message, SqliteJournal
from gleaner.supervisor.names.registry import NameFenced

TOKENS = 3
SETS = ["job.steps=2", "rollout.prompts=1", "rollout.samples=2", "training.micro_batch_groups=1"]


@pytest.fixture
def config() -> Config:
    return load("quickstart", SETS)


def events_of(step: int) -> list[Message]:
    """A batch of one group with two samples, rolled out in one frame a token."""
    batch = f"step-{step}"
    requests = tuple(f"{batch}/0/{sample}" for sample in range(2))
    instance = f"spot-{step}"
    prompt = Prompt(split="train", index=step, tokens=(1, 2), seeds=(7, 8))
    frames = [
        FrameLogged(
            instance=instance,
            incarnation=step,
            seq=seq,
            tickets=array.array("I", [1, 2]).tobytes(),
            tokens=array.array("I", [seq, seq + 10]).tobytes(),
            logprobs=array.array("f", [-1.0, -2.0]).tobytes(),
            flags=bytes([2, 2] if seq == TOKENS else [0, 0]),
        )
        for seq in range(1, TOKENS + 1)
    ]
    return [
        BatchSubmitted(batch=batch, version=step - 1, prompts=(prompt,), max_new_tokens=8),
        InstanceJoined(instance=instance, incarnation=step),
        Dispatched(instance=instance, incarnation=step, version=step - 1, tickets=(1, 2), requests=requests),
        *frames,
        *(Scored(request=request, score=1.0) for request in requests),
    ]


def trained_from(ledger: BatchLedger, step: int) -> StepTrained:
    samples = tuple(TrainedSample(request=it.request, count=it.count, crc=it.crc) for it in ledger.requests)
    return StepTrained(step=step, samples=samples, root=bytes([step]))


async def write(path: Path, streams: dict[str, Sequence[Message]], snapshot: Message | None = None) -> None:
    """A journal; `snapshot` goes before the events of the manager."""
    store = SqliteJournal(path, commit_s=0.0)
    for name, events in streams.items():
        store.open(name, 1)
        if snapshot is not None and name == MANAGER:
            await store.snapshot(name, 1, snapshot)
        await store.append(name, 1, events)
    await store.close()


async def record(run: Path) -> None:
    """A whole run of two steps: the first batch is released into the ledger, the second is still open."""
    state = RolloutState()
    for event in events_of(1):
        state.apply(event)
    first = ledger_of(state.log.batches["step-1"])
    state.apply(BatchReleased(batch="step-1"))
    snapshot = ManagerSnapshot(rollout=state.snapshot(), weights={})
    for event in events_of(2):
        state.apply(event)
    second = ledger_of(state.log.batches["step-2"])
    steps = [trained_from(first, 1), trained_from(second, 2)]
    head, reserved = run / "nodes" / "head" / "journal", run / "nodes" / "reserved-1" / "journal"
    await write(head / "rollout.sqlite", {MANAGER: events_of(2), LEDGER: [first]}, snapshot)
    fence = NameFenced(name="rollout/manager", incarnation=5)
    await write(
        head / "agent.sqlite", {CONTROLLER: [StepFinished(step=1), StepFinished(step=2)], REGISTRY: [fence]}
    )
    await write(reserved / "agent.sqlite", {STATE: steps})
    commit = msgspec.msgpack.encode({"result": {"step": 2}, "samples": steps[1].samples})
    CheckpointStore(run / "checkpoints").write(2, {COMMIT_FILE: commit}, {})


async def test_complete_run_passes_the_audit(tmp_path: Path, config: Config) -> None:
    await record(tmp_path)
    evidence = gather(tmp_path, config, complete=True)
    assert evidence.missing == []
    assert audit(evidence) == []
    assert {ledger.batch for ledger in evidence.ledgers} == {"step-1", "step-2"}
    assert evidence.counters is not None
    assert evidence.counters.tokens_collected == 2 * 2 * TOKENS
    tokens = array.array("I", [1, 2, 3]).tobytes()
    last = evidence.trained[1]
    assert isinstance(last, StepTrained)
    assert last.samples[0].crc == zlib.crc32(tokens)


def job_snapshot(*recorded: tuple[int, int]) -> JobSnapshot:
    return replace(JobProgress(ProblemOrder(1, 1)).snapshot(), recorded=recorded)


@pytest.mark.parametrize(
    ("recorded", "after", "text"),
    [
        (((1, 2),), (), ""),
        (((1, 1),), (2,), ""),
        (((2, 2),), (), "step 1 was never recorded"),
        (((1, 1),), (), "step 2 was never recorded"),
        (((1, 2),), (2,), "step 2 is recorded 2 times"),
        (((1, 2), (2, 2)), (), "step 2 is recorded 2 times"),
    ],
)
async def test_steps_of_a_snapshot_are_audited_as_those_of_events(
    tmp_path: Path, config: Config, recorded: tuple[tuple[int, int], ...], after: tuple[int, ...], text: str
) -> None:
    await record(tmp_path)
    place = tmp_path / "nodes" / "head" / "journal" / "agent.sqlite"
    store = SqliteJournal(place, commit_s=0.0)
    store.open(CONTROLLER, 2)
    await store.snapshot(CONTROLLER, 2, job_snapshot(*recorded))
    await store.append(CONTROLLER, 2, [StepFinished(step=step) for step in after])
    await store.close()
    found = audit(gather(tmp_path, config, complete=True))
    assert [str(one) for one in found if text not in str(one)] == []
    assert bool(found) is bool(text)


async def test_state_elsewhere_is_found_at_its_named_place(tmp_path: Path, config: Config) -> None:
    await record(tmp_path / "run")
    (tmp_path / "run" / "nodes" / "head").rename(tmp_path / "elsewhere")
    without = gather(tmp_path / "run", config, complete=True)
    assert {invariant for invariant, _text in without.missing} == set(INVARIANTS)
    found = gather(tmp_path / "run", config, complete=True, state_dirs=[tmp_path / "elsewhere"])
    assert audit(found) == []


async def test_journals_of_other_jobs_are_left_alone(tmp_path: Path, config: Config) -> None:
    await record(tmp_path / "run")
    for node in ("head", "reserved-1"):
        journals = tmp_path / "run" / "nodes" / node / "journal"
        for job in ("run", "another"):
            shutil.copytree(journals, tmp_path / node / "journal" / job)
        (tmp_path / node / "journal" / "another" / "agent.sqlite").write_bytes(b"of no interest")
    shutil.rmtree(tmp_path / "run" / "nodes")
    hosts = [tmp_path / "head", tmp_path / "reserved-1"]
    found = gather(tmp_path / "run", config, complete=True, state_dirs=hosts)
    assert audit(found) == []
    assert {ledger.batch for ledger in found.ledgers} == {"step-1", "step-2"}


async def test_damaged_checkpoint_is_breach_and_damaged_journal_unchecked(
    tmp_path: Path, config: Config
) -> None:
    await record(tmp_path)
    (tmp_path / "checkpoints" / "step-000002" / COMMIT_FILE).write_bytes(b"torn")
    journal = tmp_path / "nodes" / "head" / "journal" / "rollout.sqlite"
    journal.write_bytes(journal.read_bytes()[:4096] + bytes(4096) + journal.read_bytes()[8192:])
    evidence = gather(tmp_path, config, complete=True)
    violations = audit(evidence)
    texts = [str(violation) for violation in violations]
    assert any(text.startswith("I5: checkpoint step-000002") for text in texts)
    assert any("rollout.sqlite is damaged" in text for text in texts)
    assert [place for place, _fault in evidence.damaged] == [str(journal)]
    found = states(violations)
    assert found["I5"] is State.BROKEN
    assert {found[name] for name in ("I1", "I2", "I3", "I4")} == {State.UNCHECKED}


async def test_damaged_page_needed_by_no_stream_is_named(tmp_path: Path, config: Config) -> None:
    """Every row can be read; SQLite detects the damage only in an integrity check."""
    await record(tmp_path)
    journal = tmp_path / "nodes" / "head" / "journal" / "rollout.sqlite"
    db = sqlite3.connect(journal)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    page_bytes, pages = (
        db.execute("PRAGMA page_size").fetchone()[0],
        db.execute("PRAGMA page_count").fetchone()[0],
    )
    db.execute("CREATE TABLE filler (x)")
    db.execute("INSERT INTO filler VALUES (?)", (bytes(page_bytes),))
    db.execute("DROP TABLE filler")  # its pages stay in the file, in the list of free pages
    db.commit()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    content = bytearray(journal.read_bytes())
    assert len(content) > pages * page_bytes
    content[pages * page_bytes :] = b"\xff" * (len(content) - pages * page_bytes)
    journal.write_bytes(content)
    evidence = gather(tmp_path, config, complete=True)
    assert {place for place, _fault in evidence.damaged} == {str(journal)}
    found = states(audit(evidence))
    assert found["I5"] is State.HOLDS
    assert found["I2"] is State.UNCHECKED


async def test_journal_without_needed_streams_is_verified_too(tmp_path: Path, config: Config) -> None:
    await record(tmp_path)
    other = tmp_path / "nodes" / "reserved-1" / "journal" / "transfer.sqlite"
    await write(other, {"reserved-1/transfer": [StepFinished(step=1)]})
    db = sqlite3.connect(other)
    db.execute("UPDATE events SET crc = crc + 1")
    db.commit()
    db.close()
    evidence = gather(tmp_path, config, complete=True)
    assert [place for place, _fault in evidence.damaged] == [str(other)]
    assert audit(evidence) == [], "the invariants do not depend on it"


async def test_token_changed_on_its_way_to_trainer_is_found(tmp_path: Path, config: Config) -> None:
    await record(tmp_path)
    evidence = gather(tmp_path, config, complete=True)
    journal = tmp_path / "nodes" / "reserved-1" / "journal" / "agent.sqlite"
    journal.unlink()
    last = evidence.trained[1]
    assert isinstance(last, StepTrained)
    samples = (msgspec.structs.replace(last.samples[0], crc=1), *last.samples[1:])
    await write(journal, {STATE: [evidence.trained[0], StepTrained(step=2, samples=samples, root=b"")]})
    found = {violation.invariant for violation in audit(gather(tmp_path, config, complete=True))}
    assert found == {"I1", "I5"}, "the trained tokens, and the checkpoint made of others"


@pytest.mark.parametrize(
    "planted", [None, Scored(request="step-2/0/1", score=0.0), Scored(request="none", score=1.0)]
)
async def test_verdict_that_counts_for_no_request_is_found_in_the_journal(
    tmp_path: Path, config: Config, planted: Scored | None
) -> None:
    await record(tmp_path)
    if planted is not None:
        store = SqliteJournal(tmp_path / "nodes" / "head" / "journal" / "rollout.sqlite", commit_s=0.0)
        store.open(MANAGER, 2)
        await store.append(MANAGER, 2, [planted])
        await store.close()
    violations = audit(gather(tmp_path, config, complete=True))
    why = {"step-2/0/1": "scored_twice", "none": "unknown_request"}
    wanted = [f"I7: verdict of {planted.request}: {why[planted.request]}"] if planted else []
    assert [str(violation) for violation in violations] == wanted


async def test_second_verdict_in_the_journal_of_the_reward_proxy_is_found(
    tmp_path: Path, config: Config
) -> None:
    await record(tmp_path)
    journal = tmp_path / "nodes" / "head" / "journal" / "reward.sqlite"
    given = VerdictGiven(request="step-2/0/0", batch="step-2", score=1.0, status="ok")
    await write(journal, {REWARD: [given]})
    assert audit(gather(tmp_path, config, complete=True)) == []
    journal.unlink()
    await write(journal, {REWARD: [given, given]})
    (found,) = audit(gather(tmp_path, config, complete=True))
    assert str(found) == "I7: the reward proxy has two verdicts of step-2/0/0 of step-2"


async def test_damaged_journal_of_the_reward_proxy_leaves_i7_unchecked(
    tmp_path: Path, config: Config
) -> None:
    await record(tmp_path)
    journal = tmp_path / "nodes" / "head" / "journal" / "reward.sqlite"
    await write(journal, {REWARD: [VerdictGiven(request="r", batch="step-2", score=1.0, status="ok")]})
    db = sqlite3.connect(journal)
    db.execute("UPDATE events SET crc = crc + 1")
    db.commit()
    db.close()
    found = states(audit(gather(tmp_path, config, complete=True)))
    assert [name for name, state in found.items() if state is not State.HOLDS] == ["I7"]
    assert found["I7"] is State.UNCHECKED
