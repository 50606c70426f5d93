"""Sender, receiver and answer of each message kind, derived from the source.

The senders follow from where messages are constructed, the receivers and answers from the handlers. Owns the
derivation and the few facts that the source does not contain: the names under which actors are reached, the
actor that sends from a shared module, and the answer of a handler that replies later. A missing fact raises
an error that names it.
"""

import ast
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gleaner.actors.names import (
    BALANCER,
    CONTROLLER,
    GATEWAY,
    MANAGER,
    PLANNER,
    PROVIDER,
    REWARD,
    REWARD_SERVICE,
    SCHEDULER,
    STATE,
    TRAINER,
)
from gleaner.rlctl import struct_table, vocabulary
from gleaner.supervisor import Deferred
from gleaner.supervisor.mailbox import Lane
from gleaner.supervisor.message import Done, Message
from gleaner.supervisor.names.registry import Registry
from gleaner.supervisor.system_messages import SYSTEM, Failure

OF_SERVICE = f"{CONTROLLER} of a reward service"
NAMES = {
    "Registry": "registry",
    "Scheduler": SCHEDULER,
    "LocalProvider": PROVIDER,
    "RLController": CONTROLLER,
    "RolloutManager": MANAGER,
    "LoadBalancer": BALANCER,
    "Gateway": GATEWAY,
    "RewardProxy": REWARD,
    "RewardHost": "<node>/reward",
    "RewardPlanner": PLANNER,
    "NodeAgent": "<node>/agent",
    "StateManager": STATE,
    "Trainer": TRAINER,
    "TransferAgent": "<node>/transfer",
    "RolloutWorker": "<node>/engine",
    "NoticeWatcher": "<node>/notices",
    "FolderWeights": "<node>/transfer of an engine by URL",
    "ServiceHosts": OF_SERVICE,
}
"""Name under which an actor is reached, by class; in the order of the page."""

SPEAKERS = {
    "gleaner.supervisor": "every process",
    "gleaner.actors.cluster.fleet_orders": SCHEDULER,
    "gleaner.actors.cluster.local_hosts": PROVIDER,
    "gleaner.actors.cluster.membership": SCHEDULER,
    "gleaner.actors.engine": "<node>/engine",
    "gleaner.actors.reward.blob_transfer": f"{REWARD} and <node>/reward",
    "gleaner.actors.reward.host": "<node>/reward",
    "gleaner.actors.reward.remote_workers": REWARD,
    "gleaner.actors.reward.scaling": REWARD,
    "gleaner.actors.reward_service": REWARD_SERVICE,
    "gleaner.actors.rollout": MANAGER,
    "gleaner.actors.gateway": GATEWAY,
    "gleaner.actors.training.history_recorder": CONTROLLER,
    "gleaner.actors.training.durability": CONTROLLER,
    "gleaner.actors.training.evaluation": CONTROLLER,
    "gleaner.actors.training.loop": CONTROLLER,
    "gleaner.actors.training.step_plan": CONTROLLER,
    "gleaner.actors.training.submission": CONTROLLER,
    "gleaner.actors.training.fsdp2_files": TRAINER,
    "gleaner.actors.training.trainer_files": TRAINER,
    "gleaner.actors.training.stair_seeding": TRAINER,
    "gleaner.actors.weights": "<node>/transfer",
    "gleaner.nodeagent": "<node>/agent",
    "gleaner.nodeagent.notices": "<node>/notices",
    "gleaner.rlctl": "rlctl",
}
"""Sender of messages from the modules below a package that belong to no single actor; the longest prefix
counts."""

SAID_BY = {
    (SYSTEM, "Inspect"): ("rlctl", "<node>/agent"),
    ("registry", "ListNames"): ("rlctl", "<node>/agent"),
    (SCHEDULER, "NodeSeen"): ("<node>/agent",),
    (CONTROLLER, "NodeSeen"): (SCHEDULER,),
    (OF_SERVICE, "NodeSeen"): (SCHEDULER,),
}
"""Sender and receiver of messages where their modules do not determine them: a message with several
receivers, or one that a shared module constructs."""

TO_SYSTEMS = {
    "Watch": "",
    "Ended": "",
    "LinkActors": "",
    "Heartbeat": "",
    "Inspect": "SystemState",
    "ListWaits": "WaitsOf",
    "ListDeadLetters": "DeadLettersOf",
    "Describe": "ActorDescribed",
    "StartTap": "TapRecords",
    "ReadTap": "TapRecords",
    "StopTap": "TapRecords",
}
"""Messages that every process answers beneath its actors, as `$system`, with the answer ("": none)."""

LATER = {
    "CloseSeeding": "Done",
    "HalveSeeding": "Done",
    "Generate": "Generated or VersionNotReady",
    "GetProblems": "Problems",
    "MorePrompts": "PromptsAre",
    "Score": "Verdict",
    "RunCode": "CodeRan",
    "ScoreText": "Verdict",
    "TakeGroups": "Groups",
    "Withdraw": "Withdrawn",
    "Fetch": "Fetched",
    "PublishVersion": "Done or NotPublished",
    "PartWritten": "Published",
    "JoinPart": "Joined",
    "JoinDelta": "DeltaJoined",
    "WhatComes": "Fetched",
    "ClaimNames": "LeaseGranted",
    "Unregister": "Done",
}
"""Answer of a handler that returns nothing but `Deferred`."""


class MissingFact(Exception):
    """A fact is missing from the tables of this module, or is not used."""


@dataclass(frozen=True, slots=True)
class Line:
    """One kind that an actor understands. `answer`: the kind that answers an ask, "" for one-way messages."""

    kind: type[Message]
    to: str
    senders: tuple[str, ...]
    answer: str
    lane: Lane


@dataclass(frozen=True, slots=True)
class Conversations:
    """All lines by receiver; `answers`: kinds that only answer; `written`: kinds that are never sent alone,
    because they are journaled or are parts of others; `private`: messages that an actor sends itself, by
    actor."""

    lines: dict[str, list[Line]]
    answers: list[type[Message]]
    written: list[type[Message]]
    private: dict[str, list[str]]


def conversations() -> Conversations:
    """All lines, answers and private messages. Raises `MissingFact`."""
    kinds = vocabulary.kinds()
    speakers = _Speakers(kinds)
    lines = {
        SYSTEM: [
            Line(kinds[name], SYSTEM, speakers.of(name, SYSTEM), answer, Lane.SYSTEM)
            for name, answer in TO_SYSTEMS.items()
            if name in kinds
        ]
    }
    private: dict[str, list[str]] = {}
    found = {actor.__name__: actor for actor in vocabulary.actors()}
    _same("NAMES", set(NAMES), set(found))
    for actor_name, name in NAMES.items():
        for kind, (handler, lane) in found[actor_name].handlers().items():
            senders = speakers.of(kind.__name__, name)
            if senders == (name,) and kind.__module__ == found[actor_name].__module__:
                private.setdefault(name, []).append(kind.__name__)
            else:
                lines.setdefault(name, []).append(Line(kind, name, senders, _answer(kind, handler), lane))
    sent = {line.kind.__name__ for own in lines.values() for line in own}
    sent |= {kind for own in private.values() for kind in own}
    answers_of = [line.answer.split(" or ") for own in lines.values() for line in own]
    answering = {answer for answers in answers_of for answer in answers} | {Failure.__name__}
    answers = [cls for name, cls in kinds.items() if name in answering - sent]
    written = [cls for name, cls in kinds.items() if name not in answering | sent]
    inside = {part for cls in kinds.values() for part in struct_table.inside(cls)}
    for cls in written:  # the journals of `supervisor` are the registry's alone
        if (
            cls.__module__.startswith("gleaner.supervisor.")
            and cls.__module__ != Registry.__module__
            and cls not in inside
        ):
            raise MissingFact(f"{cls.__name__} has no answer: add it to TO_SYSTEMS of rlctl/conversations.py")
    return Conversations(lines, answers, written, private)


def _answer(kind: type[Message], handler: Callable[..., object]) -> str:
    """The answer kind of a handler, from its annotation; `Done` for a handler that returns nothing."""
    found = typing.get_type_hints(handler)["return"]
    alternatives = set(typing.get_args(found) or [found]) - {types.NoneType}
    later = Deferred in alternatives
    alternatives.discard(Deferred)
    if later and not alternatives:
        if kind.__name__ not in LATER:
            raise MissingFact(
                f"{kind.__name__} is answered later: add its answer to LATER of rlctl/conversations.py"
            )
        return LATER[kind.__name__]
    names = sorted(it.__name__ for it in alternatives) or [Done.__name__]
    return " or ".join(names)


class _Speakers:
    """The modules that construct each kind: every module of the product that calls its class."""

    def __init__(self, kinds: Mapping[str, type[Message]]) -> None:
        owners = {cls.__module__: NAMES[cls.__name__] for cls in vocabulary.actors() if cls.__name__ in NAMES}
        self._prefixes = {**SPEAKERS, **owners}
        self._modules: dict[str, list[str]] = {kind: [] for kind in kinds}
        for module, path in vocabulary.modules():
            for kind in _made(module, path, kinds):
                self._modules[kind].append(module)

    def of(self, kind: str, to: str) -> tuple[str, ...]:
        """Senders of `kind` to `to`, in the order of the page; `to` itself only where there is no other
        sender."""
        if (to, kind) in SAID_BY:
            return SAID_BY[to, kind]
        order = ["rlctl", *NAMES.values()]
        found = {self._speaker(module) for module in self._modules[kind]}
        found = found - {to} or found
        return tuple(sorted(found, key=lambda name: order.index(name) if name in order else len(order)))

    def _speaker(self, module: str) -> str:
        fitting = [it for it in self._prefixes if module == it or module.startswith(f"{it}.")]
        if not fitting:
            raise MissingFact(f"{module} makes messages: add its actor to SPEAKERS of rlctl/conversations.py")
        return self._prefixes[max(fitting, key=len)]


def _made(module: str, path: Path, kinds: Mapping[str, type[Message]]) -> set[str]:
    """Kinds whose class is called in a source file. Another class of the same name does not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    homes = {name: {cls.__module__, "gleaner.supervisor"} for name, cls in kinds.items()}
    known = {name for name, home in homes.items() if module in home}
    called = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=home, names=names):
                known |= {it.name for it in names if home in homes.get(it.name, ())}
            case ast.Call(func=ast.Name(id=name)):
                called.add(name)
    return called & known


def _same(table: str, declared: set[str], found: set[str]) -> None:
    if declared != found:
        more, gone = sorted(found - declared), sorted(declared - found)
        raise MissingFact(f"{table} of rlctl/conversations.py: add {more}, remove {gone}")
