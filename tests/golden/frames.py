"""One example of every frame of `transport/`, with its decoder and its meaning."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gleaner.chaos.examples import example
from gleaner.transport import bulk_frames, control_frame, envelope, stream_control, token_frame


class Case(NamedTuple):
    """`decode(parts)` gives `value`; `meaning` shows it in plain lists and texts, and where `packed` each
    part is MessagePack of the same item of it."""

    name: str
    parts: Sequence[bytes]
    decode: Callable[[list[bytes]], object]
    value: object
    meaning: list[Any]
    packed: bool = True


def cases() -> list[Case]:
    """Every frame of `transport/`."""
    return [_envelope(), *_control_frames(), _token_frame(), *_stream_control(), _request(), _answer()]


def _envelope() -> Case:
    value = example(envelope.Envelope)
    meaning = msgspec.to_builtins(value, builtin_types=(bytes,))
    return Case("Envelope", [_pack(value)], lambda parts: envelope.decode(*parts), value, [meaning])


def _pack(value: envelope.Envelope) -> bytes:
    return envelope.encode(**{name: getattr(value, name) for name in value.__struct_fields__})


def _control_frames() -> list[Case]:
    batch = [example(envelope.Envelope), envelope.Envelope(kind="Done", dst="rollout/manager", body=b"")]
    life = 1_700_000_000_000 << 20
    frames = [
        control_frame.hello(life + 1, life + 2, 7, 3, 1027),
        control_frame.welcome(life + 2, life + 1, 6, 1030),
        control_frame.data(life + 1, 7, 3, 1027, [_pack(value) for value in batch]),
        control_frame.ack(life + 2, 8, 1032, again=True, sent=3),
        control_frame.refused("control link of major version 3, this process speaks 2"),
        control_frame.gone(life + 1),
    ]

    def decode(parts: list[bytes]) -> control_frame.ControlFrame:
        return control_frame.decode(parts[0], lambda reason, detail: None)

    values = [decode([frame]) for frame in frames]
    return [
        Case(
            f"link {type(value).__name__}",
            [frame],
            decode,
            value,
            [msgspec.to_builtins(value, builtin_types=(bytes,))],
        )
        for frame, value in zip(frames, values, strict=True)
    ]


def _token_frame() -> Case:
    slots, tokens = np.array([7, 1 << 31], "<u4"), np.array([151643, 0], "<u4")
    logprobs, flags = np.array([-0.5, 0.0], "<f4"), np.array([1, 2 | 8], "u1")
    frame = token_frame.TokenFrame("spot-1/engine", 1_700_000_000_000, 300, slots, tokens, logprobs, flags)

    def shown(it: token_frame.TokenFrame) -> list[Any]:
        head = [token_frame.MAJOR, it.stream, it.incarnation, it.seq, len(it)]
        return [head, [column.tolist() for column in (it.slots, it.tokens, it.logprobs, it.flags)]]

    return Case(
        "TokenFrame",
        token_frame.encode(frame),
        lambda parts: shown(token_frame.decode(parts)),
        shown(frame),
        shown(frame),
        packed=False,
    )


def _stream_control() -> list[Case]:
    values = [
        msgspec.structs.replace(example(stream_control.Hello), major=stream_control.MAJOR),
        msgspec.structs.replace(example(stream_control.Have), major=stream_control.MAJOR),
        example(stream_control.Ack),
        example(stream_control.Resend),
        example(stream_control.Refused),
    ]
    return [
        Case(
            f"stream {type(value).__name__}",
            stream_control.encode(value),
            stream_control.decode_hello
            if isinstance(value, stream_control.Hello)
            else stream_control.decode_from_receiver,
            value,
            [msgspec.to_builtins(value)],
        )
        for value in values
    ]


SECRET = bytes(range(bulk_frames.SECRET_BYTES))


def _request() -> Case:
    value = bulk_frames.Request(bytes(range(16)), 7, 1 << 33, 1 << 20, 0xC0FFEE)

    def decode(parts: list[bytes]) -> bulk_frames.Request:
        assert bulk_frames.is_signed(parts[0], SECRET)
        return bulk_frames.decode_request(parts[0])

    return Case(
        "bulk Request", [bulk_frames.encode_request(value, SECRET)], decode, value, [value], packed=False
    )


def _answer() -> Case:
    value = (bulk_frames.Status.BAD_RANGE, 7, 0xC0FFEE, 1 << 20)
    return Case(
        "bulk Answer",
        [bulk_frames.encode_answer(value[0], value[1], value[2], value[3])],
        lambda parts: bulk_frames.decode_answer(*parts),
        value,
        [value],
        packed=False,
    )
