"""Versions of journaled messages: upgrades from older programs to this one.

Owns the upgrade functions and the way along them. A message class declares its version with the class
attribute `SCHEMA` (1 by default); rows in a journal carry the version under which they were written. To
change the meaning of a field, or to remove one, do three things: raise `SCHEMA`, write the step from the
version before, keep every older step. A new field with a default needs none of it.

    class Noted(Message, frozen=True):
        SCHEMA: ClassVar[int] = 2
        millimetres: int

    @upgrades("Noted", 1)
    def _(fields: Fields) -> Fields:
        return {"millimetres": fields["centimetres"] * 10}

    @upgrades("Scribbled", 1, to="Noted")            # the class has another name now
    def _(fields: Fields) -> Fields: ...

    forgets("Doodled", 1)                            # means nothing any more: passed over at replay

Steps work on the raw fields, so they do not need the old class. Source of the scheme: Akka Persistence,
"Schema evolution for event sourced actors" (upcasting at replay).
"""

from collections.abc import Callable
from typing import Any

import msgspec

from gleaner.supervisor.errors import BadBody, JournalUnreadable, UnknownKind
from gleaner.supervisor.message import Message, decode_body, schema_of

Fields = dict[str, Any]
"""A message at rest: its fields as MessagePack knows them (numbers, text, bytes, lists, maps)."""
Step = Callable[[Fields], Fields]

MAX_STEPS = 1000
"""Most steps of one message to its present version; more of them are a circle."""

_STEPS: dict[tuple[str, int], tuple[str, int, Step | None]] = {}


def upgrades(kind: str, version: int, *, to: str = "", to_version: int = 0) -> Callable[[Step], Step]:
    """Register the step from `version` of `kind` to the next one (or to `to_version` of the kind `to`).

    Raises ValueError for a step that another function is registered for.
    """

    def register(step: Step) -> Step:
        target = (to or kind, to_version or (1 if to else version + 1))
        _register(kind, version, (*target, step))
        return step

    return register


def forgets(kind: str, version: int) -> None:
    """`version` of `kind` means nothing any more: replay passes over it."""
    _register(kind, version, ("", 0, None))


def _register(kind: str, version: int, step: tuple[str, int, Step | None]) -> None:
    known = _STEPS.get((kind, version))
    if known is not None and _place(known[2]) != _place(step[2]):
        raise ValueError(f"two upgrades of {kind!r} version {version}: {_place(known[2])}, {_place(step[2])}")
    _STEPS[kind, version] = step


def _place(step: Step | None) -> str:
    return "forgets" if step is None else f"{step.__module__}:{step.__code__.co_firstlineno}"


def decode_stored(kind: str, version: int, body: bytes) -> Message | None:
    """The message that `body` means today; None for one that is passed over.

    Raises JournalUnreadable: written by a newer program, no upgrade leads here, or a step failed. The text
    does not name the place; the reader of the row adds it.
    """
    if schema_of(kind) == version and (kind, version) not in _STEPS:
        return _decoded(kind, version, body)
    try:
        fields = msgspec.msgpack.decode(body, type=Fields)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise JournalUnreadable(f"{kind} version {version} does not decode: {problem}") from problem
    at, at_version = kind, version
    for _ in range(MAX_STEPS):
        step = _STEPS.get((at, at_version))
        if step is None:
            break
        at, at_version, convert = step
        if convert is None:
            return None
        fields.pop("type", None)
        try:
            fields = {"type": at, **convert(fields)}
        except Exception as problem:
            raise JournalUnreadable(
                f"the upgrade of {kind} version {version} to {at} version {at_version} failed: {problem!r}"
            ) from problem
    known = schema_of(at)
    if known is None:
        raise JournalUnreadable(
            f"{kind} version {version} is not known to this program: a newer one wrote it, or the message "
            "was taken out without an upgrade"
        )
    if at_version > known:
        raise JournalUnreadable(
            f"{at} version {at_version} was written by a newer program, this one supports version {known}: "
            "run the newer program"
        )
    if at_version < known:
        raise JournalUnreadable(
            f"{at} version {at_version}: no upgrade leads to version {known}, which this program supports"
        )
    return _decoded(at, at_version, msgspec.msgpack.encode(fields))


def _decoded(kind: str, version: int, body: bytes) -> Message:
    try:
        return decode_body(kind, body)
    except (BadBody, UnknownKind) as problem:
        raise JournalUnreadable(f"{kind} version {version} does not decode: {problem}") from problem
