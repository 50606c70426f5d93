"""The story of a run: readable lines, up to the first broken promise."""

import subprocess
import sys
from array import array
from collections.abc import Iterable
from pathlib import Path

import pytest

from gleaner.actors.protocol.instances import Dispatch, RegisterInstance, Work
from gleaner.actors.protocol.requests import Generate
from gleaner.actors.rollout.state.events import Dispatched, FrameLogged
from gleaner.chaos.faults import KillProcess
from gleaner.chaos.invariants import facts
from gleaner.chaos.invariants.catalogue import Jury
from gleaner.chaos.invariants.check import Check, Found
from gleaner.chaos.invariants.facts import (
    CommandAnswered,
    Committed,
    DeclaredDead,
    Fact,
    Failed,
    FrameDelivered,
    FramesAcknowledged,
    LateWait,
    Measured,
    MessagePassed,
    ProcessFrozen,
    RecordWritten,
    RequestAnswered,
    RequestAsked,
    ServedImage,
    VerifierAnswered,
)
from gleaner.chaos.invariants.shadow import Shadow
from gleaner.chaos.invariants.stream_facts import CreditGranted, FrameArrived
from gleaner.chaos.plan import load
from gleaner.chaos.replay import replay
from gleaner.chaos.schedule import Schedule
from gleaner.chaos.story import MAX_CHARS, fields, line_of, line_of_fault, line_of_found, line_of_note
from gleaner.chaos.story_filter import StoryFilter
from gleaner.rlctl.errors import FAILED, USAGE
from gleaner.supervisor import Done, Message

TINY = str(Path(__file__).with_name("tiny.toml"))
ASK = Generate(id="a", prompt=b"", max_new_tokens=8)
WORK = Work(ticket=3, prompt=b"p" * 40, prefix=b"", seed=7, max_new_tokens=9, temperature=1.0)


def test_message_line_shows_actors_and_sizes_of_long_fields() -> None:
    message = Dispatch(epoch="1.2", version=4, work=[WORK])
    line = line_of(
        MessagePassed(12.5, "head/rollout", "out", "tell", "rollout/manager", "spot-1/engine", message)
    )
    assert line.startswith(
        "   12.500000 head/rollout       tell  rollout/manager -> spot-1/engine: Dispatch "
    )
    assert "epoch=1.2 version=4 work=[(ticket=3 prompt=[1886417008 " in line
    many = Dispatch(epoch="x" * 500, version=4, work=[WORK] * 9)
    assert len(fields(many)) <= MAX_CHARS
    assert "work=<9 of them>" in fields(Dispatch(epoch="", version=4, work=[WORK] * 9))
    assert fields(Done()) == ""


FACTS: list[tuple[Fact, str]] = [
    (RequestAsked(1.0, "caller-1", ASK), "caller-1           asks: id=a"),
    (RequestAnswered(1.0, "caller-1", 0.5, ASK, None, "others"), "asked for a at 0.500 s and got: others"),
    (MessagePassed(1.0, "head/agent", "in", "ask", "a", "b", Done()), "ask   a <- b: Done"),
    (Committed(1.0, "head", "rollout/manager", 5, (Done(),)), "commit of rollout/manager#5: Done"),
    (Committed(1.0, "head", "registry", 5, (), snapshot=True), "snapshot of registry#5"),
    (FramesAcknowledged(1.0, "spot-1/engine", 8, 21), "frames of spot-1/engine#8 up to 21"),
    (
        FrameDelivered(1.0, "tcp://a", (7, 1, 2), 4, 1, (4,)),
        "message 4 of tcp://a (session 7) handed up: all",
    ),
    (
        FrameDelivered(1.0, "tcp://a", (7, 1, 2), 4, 3, (5, 6)),
        "message 4 to 6 of tcp://a (session 7) handed up: 5, 6",
    ),
    (
        RecordWritten(1.0, "reserved-1", 3, 2),
        "wants step 3 on record; of the whole states here the newest is of step 2",
    ),
    (RecordWritten(1.0, "reserved-1", 3, -1), "of the whole states here there is none"),
    (ServedImage(1.0, "spot-1", 3, b"r", b"\xab" * 16, None), "version 3, digest abababababab"),
    (VerifierAnswered(1.0, "train", 7, bytes(12)), "problem 7 of train: 3 tokens are scored"),
    (LateWait(1.0, "head/rollout", "m", "an answer", "x", 4.25), "waits for an answer on x, late 4.2 s"),
    (Measured(1.0, "head/rollout", "mailbox of m", 9, 8), "mailbox of m: 9 of 8"),
    (Failed(1.0, "head/rollout", "a defect"), "failed: a defect"),
    (ProcessFrozen(1.0, "head/rollout", 4.0, 15.0), "hangs for 4.0 of 15.0 s"),
    (ProcessFrozen(1.0, "head/rollout", 11.0, 15.0, "SIGKILL"), "for 11.0 of 15.0 s, ended: SIGKILL"),
    (CommandAnswered(1.0, "drain", Done(), None, "no host"), "drain (Done) got: no host"),
    (DeclaredDead(1.0, "spot-1", 12.0, True), "is declared dead by a head that hung for 12.0 s"),
]


STREAMS: list[tuple[Fact, str]] = [
    (CreditGranted(1.0, 0, "spot-1/engine", 8, 21), "frames of spot-1/engine#8 may be sent up to 21"),
    (FrameArrived(1.0, 0, "spot-1/engine", 8, 3, "dropped"), "frame 3 of spot-1/engine#8 is dropped"),
]


@pytest.mark.parametrize(("fact", "expected"), [*FACTS, *STREAMS])
def test_every_kind_of_fact_has_its_own_line(fact: Fact, expected: str) -> None:
    line = line_of(fact)
    assert line.startswith("    1.000000 ")
    assert expected in line
    assert "\n" not in line


def test_no_kind_of_fact_is_left_out() -> None:
    kinds = {
        kind.__name__ for kind in vars(facts).values() if isinstance(kind, type) and issubclass(kind, Fact)
    }
    assert {type(fact).__name__ for fact, _ in FACTS} == kinds - {"Fact"}


def test_faults_and_violations_are_emphasised() -> None:
    kill = KillProcess(at_s=3.0, host="head", process="rollout")
    assert "FAULT fires: at     3.00 s  kill_process" in line_of_fault(3.0, kill, "fires")
    assert line_of_found(Found("I2", 4.0, "lost")) == "    4.000000 VIOLATION of I2: lost"


def test_process_host_and_disk_events_are_shown_once() -> None:
    assert line_of_note("7.5 disk full ('head',)\n") == "    7.500000 disk full ('head',)"
    assert line_of_note("7.5 net (4, 7.6, 200, 1)\n") == ""
    assert line_of_note("7.5 events ('head', 'x', 'y', 3, b'')\n") == ""


class NoRegistration(Check):
    """Broken by the first instance that registers."""

    fact_kinds = (MessagePassed,)
    name = "I1"

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, MessagePassed) and isinstance(fact.message, RegisterInstance):
            yield f"{fact.message.instance} came"


@pytest.mark.parametrize("go_on", [False, True])
def test_replay_ends_with_first_violation_unless_continued(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, go_on: bool
) -> None:
    monkeypatch.setattr("gleaner.chaos.sim_run.jury_of", lambda *_: Jury((NoRegistration(),), Shadow()))
    story = tmp_path / "story.txt"
    outcome = replay(load(TINY), 1, Schedule(seed=1), trace=story, go_on=go_on)
    lines = story.read_text().splitlines()
    violations = [number for number, line in enumerate(lines) if "VIOLATION of I1: " in line]
    assert violations
    assert outcome.run.broken[0].check == "I1"
    assert any(" RegisterInstance " in line for line in lines[: violations[0]])
    assert outcome.run.ended == ("done" if go_on else "stopped")
    at_s = outcome.run.broken[0].at_s
    behind = [line for line in lines[violations[0] :] if float(line[:12]) > at_s + 0.001]
    assert bool(behind) is go_on


def frame(instance: str, tickets: list[int]) -> FrameLogged:
    return FrameLogged(
        instance=instance,
        incarnation=1,
        seq=1,
        tickets=array("I", tickets).tobytes(),
        tokens=array("I", [7] * len(tickets)).tobytes(),
        logprobs=array("f", [-0.25] * len(tickets)).tobytes(),
        flags=bytes(len(tickets)),
    )


def committed(*messages: Message) -> Committed:
    return Committed(1.0, "head", "rollout/manager", 1, messages)


def test_columns_of_a_frame_are_shown_as_numbers() -> None:
    line = line_of(committed(frame("spot-1/engine", [3, 4])))
    assert "tickets=[3 4] tokens=[7 7] logprobs=[-0.25 -0.25] flags=[0 0]" in line
    assert "... 40 in all]" in line_of(committed(frame("spot-1/engine", list(range(40)))))


def test_filter_shows_what_concerns_a_request_and_its_rows() -> None:
    one = StoryFilter(request="step-2/4")
    dispatched = Dispatched(
        instance="spot-1/engine",
        incarnation=1,
        version=0,
        tickets=(8, 9),
        requests=("step-2/4/1", "step-3/0/0"),
    )
    other = Dispatched(
        instance="spot-1/engine", incarnation=1, version=0, tickets=(8,), requests=("step-2/40/1",)
    )
    assert one.shows(committed(dispatched))
    assert one.shows(committed(frame("spot-1/engine", [8, 1])))
    assert not one.shows(committed(frame("spot-1/engine", [9])))
    assert not one.shows(committed(frame("spot-2/engine", [8])))
    assert not one.shows(committed(other))
    assert not one.shows(committed(frame("spot-1/engine", [8])))  # the number has another request now


def test_filter_shows_what_happens_on_a_host_or_at_an_actor() -> None:
    passed = MessagePassed(1.0, "spot-1/engine", "out", "tell", "spot-1/engine", "rollout/manager", Done())
    assert StoryFilter(host="spot-1").shows(passed)
    assert not StoryFilter(host="spot-10").shows(passed)
    assert StoryFilter(actor="rollout/manager").shows(passed)
    assert StoryFilter(actor="rollout/manager").shows(committed(Done()))
    assert not StoryFilter(actor="rollout/balancer").shows(passed)
    assert not StoryFilter(host="spot-1", actor="reward/proxy").shows(passed)
    assert StoryFilter(host="spot-1").shows_note("kill ('spot-1/engine', 4)")
    assert not StoryFilter(host="spot-1").shows_note("kill ('spot-12/engine', 4)")


def test_replay_with_a_planted_bug_runs_it_and_names_an_unknown_one() -> None:
    def replayed(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gleaner.rlctl", "sim", "replay", "0", "--tail", "0", *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    planted = replayed("--mutation", "acknowledge before commit")
    assert planted.returncode == FAILED
    assert "I2" in planted.stdout
    unknown = replayed("--mutation", "no such bug")
    assert unknown.returncode == USAGE
    assert "neither a planted bug nor a mutant" in unknown.stderr
