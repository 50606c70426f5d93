"""Message: base of the typed messages that actors send and write to journals.

Owns the table from kind (the class name, the tag on the wire) to type, and the two directions of the codec.
Knows nothing of envelopes, links or actors.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import msgspec

from gleaner.supervisor.errors import BadBody, UnknownKind

_KINDS: dict[str, type["Message"]] = {}
_DECODERS: dict[str, msgspec.msgpack.Decoder["Message"]] = {}
_ENCODER = msgspec.msgpack.Encoder()


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of every message and journal event: a frozen struct whose tag is its class name.

    Fields are validated when a body is decoded; unknown fields of a newer minor version are skipped.
    Two messages of one name in different modules are a programming error and refused at import.
    `SCHEMA` is the version under which a message is journaled, see `upgrades`.
    """

    SCHEMA: ClassVar[int] = 1
    QUESTION: ClassVar[bool] = False
    """Whether an ask of this kind changes nothing, so that a repeated ask is answered anew: the first answer
    may not be true any more."""

    def __init_subclass__(cls, **_options: object) -> None:
        # msgspec makes a frozen class in two passes, so the same definition may arrive twice.
        known = _KINDS.get(cls.__name__)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"message {cls.__name__!r} is defined in {known.__module__} and {cls.__module__}")
        _KINDS[cls.__name__] = cls
        _DECODERS.pop(cls.__name__, None)


def known_kinds() -> Mapping[str, type[Message]]:
    """Message class by kind: all that the modules imported so far define."""
    return MappingProxyType(_KINDS)


class Done(Message, frozen=True):
    """The empty reply: it was done."""


def kind_of(message: Message) -> str:
    """The kind under which `message` travels."""
    return type(message).__name__


def schema_of(kind: str) -> int | None:
    """This program's version of messages of `kind`; None if it does not know the kind."""
    cls = _KINDS.get(kind)
    return None if cls is None else cls.SCHEMA


def encode_body(message: Message) -> bytes:
    """MessagePack map of the fields, tagged with the kind."""
    return _ENCODER.encode(message)


def decode_body(kind: str, body: bytes) -> Message:
    """The message of `kind` in `body`.

    Raises:
        UnknownKind: no such message is defined here.
        BadBody: truncated, ill-typed or tagged with another kind.
    """
    decoder = _DECODERS.get(kind)
    if decoder is None:
        cls = _KINDS.get(kind)
        if cls is None:
            raise UnknownKind(f"message kind {kind!r} is not known here")
        decoder = _DECODERS[kind] = msgspec.msgpack.Decoder(cls)
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise BadBody(f"message {kind!r}: {problem}") from problem
