"""Fuzz targets for bytes that arrive on a socket or through a pipe."""

import struct

import msgspec
import numpy as np

from gleaner.actors.engine.worker.expert_routing import NoRows, table
from gleaner.actors.gateway.openai.tools import HERMES, MISTRAL, Form, ToolCall, ToolText
from gleaner.actors.model.byte_ranges import Run
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.reward import pipe
from gleaner.actors.reward.case_limits import CaseLimits, CaseTimes
from gleaner.actors.weights.image.manifest import Manifest, ManifestError, hashed
from gleaner.chaos.examples import example
from gleaner.chaos.fuzz.target import Target, WrongAccept, same
from gleaner.rlctl import vocabulary
from gleaner.supervisor.errors import ActorError
from gleaner.supervisor.message import decode_body, encode_body
from gleaner.transport import bulk_frames, control_frame, envelope, stream_control, token_frame
from gleaner.transport.refusal import FrameError

SECRET = bytes(32)
_PART = struct.Struct("<H")  # separates the parts of a message in a fuzzer's bytes


def targets() -> list[Target]:
    """All of them."""
    return [
        Target("envelope", _envelope, (FrameError,), _envelopes),
        Target("control_frame", _control_frame, (FrameError,), _control_frames),
        Target("body", _body, (ActorError,), _bodies),
        Target("token_frame", _token_frame, (FrameError,), _token_frames),
        Target("stream_hello", _hello, (FrameError,), _hellos),
        Target("stream_answer", _stream_answer, (FrameError,), _stream_answers),
        Target("bulk_request", _bulk_request, (FrameError,), _bulk_requests),
        Target("bulk_answer", _bulk_answer, (FrameError,), _bulk_answers),
        Target("manifest", _manifest, (ManifestError,), _manifests),
        Target("pipe", _pipe, (pipe.BadFrame,), _pipes),
        Target("experts", _experts, (NoRows,), _expert_tables),
        Target("tool_calls", _tool_calls, (), _tool_texts),
    ]


def joined(parts: list[bytes]) -> bytes:
    """The parts of a message as one input."""
    return b"".join(_PART.pack(len(part)) + part for part in parts[:-1]) + parts[-1]


def parted(data: bytes) -> list[bytes]:
    """The inverse, for any bytes: two parts, with the first one's length before it."""
    if len(data) < _PART.size:
        return [data]
    end = _PART.size + _PART.unpack_from(data)[0]
    return [data[_PART.size : end], data[end:]]


def _envelope(data: bytes) -> None:
    value = envelope.decode(data)
    same(value, envelope.decode(_pack(value)))


def _envelopes() -> list[bytes]:
    return [_pack(example(envelope.Envelope)), envelope.encode("Done", "a", b"")]


def _pack(value: envelope.Envelope) -> bytes:
    return envelope.encode(**msgspec.structs.asdict(value))


def _control_frame(data: bytes) -> None:
    refused: list[str] = []
    value = control_frame.decode(data, lambda reason, detail: refused.append(reason))
    if isinstance(value, control_frame.Data) and not refused:
        batch = [_pack(one) for one in value.envelopes]
        again = control_frame.data(value.life, value.first, value.ack, value.limit, batch)
        found = control_frame.decode(again, lambda reason, detail: refused.append(reason))
        assert isinstance(found, control_frame.Data)
        same(value.envelopes, found.envelopes)


def _control_frames() -> list[bytes]:
    return [
        control_frame.hello(1 << 60, 2, 7, 3, 1027),
        control_frame.welcome(2, 1 << 60, 6, 1030),
        control_frame.data(1, 7, 3, 1027, _envelopes()),
        control_frame.ack(2, 8, 1032, again=True, sent=3),
        control_frame.refused("another version"),
        control_frame.gone(1),
    ]


def _body(data: bytes) -> None:
    """The kind's name, a line feed, the body."""
    kind, _, body = data.partition(b"\n")
    name = kind.decode(errors="replace")
    value = decode_body(name, body)
    if type(value).__name__ != name:
        raise WrongAccept(f"{name} was decoded as {type(value).__name__}")
    again = encode_body(value)  # compared as bytes: a float may be no number
    same(again, encode_body(decode_body(name, again)))


def _bodies() -> list[bytes]:
    return [kind.encode() + b"\n" + encode_body(example(cls)) for kind, cls in vocabulary.kinds().items()]


def _token_frame(data: bytes) -> None:
    parts = parted(data)
    frame = token_frame.decode(parts)
    head, columns = token_frame.encode(frame)
    same(columns, parts[1])
    again = token_frame.decode([head, columns])
    same((frame.stream, frame.incarnation, frame.seq), (again.stream, again.incarnation, again.seq))


def _token_frames() -> list[bytes]:
    column = np.arange(3, dtype="<u4")
    frame = token_frame.TokenFrame(
        "spot-1/engine", 7, 1, column, column, column.astype("<f4"), column.astype("u1")
    )
    return [joined(token_frame.encode(frame))]


def _hello(data: bytes) -> None:
    value = stream_control.decode_hello([data])
    same(value, stream_control.decode_hello(stream_control.encode(value)))


def _stream_answer(data: bytes) -> None:
    value = stream_control.decode_from_receiver([data])
    same(value, stream_control.decode_from_receiver(stream_control.encode(value)))


def _hellos() -> list[bytes]:
    return stream_control.encode(stream_control.Hello(stream_control.MAJOR, "spot-1/engine", 7, 300))


def _stream_answers() -> list[bytes]:
    answers: list[stream_control.FromReceiver] = [
        stream_control.Have(stream_control.MAJOR, 1, 2, 3, 256),
        stream_control.Ack(70000),
        stream_control.Resend(3),
        stream_control.Refused("fenced"),
    ]
    return [stream_control.encode(answer)[0] for answer in answers]


def _bulk_request(data: bytes) -> None:
    request = bulk_frames.decode_request(data)
    same(request, bulk_frames.decode_request(bulk_frames.encode_request(request, SECRET)))
    if bulk_frames.is_signed(data, SECRET) and data not in _bulk_requests():
        raise WrongAccept(f"{data!r} counts as signed without a signature")


def _bulk_requests() -> list[bytes]:
    return [bulk_frames.encode_request(bulk_frames.Request(bytes(16), 7, 1 << 33, 1 << 20, 5), SECRET)]


def _bulk_answer(data: bytes) -> None:
    answer = bulk_frames.decode_answer(data)
    status, version, tag, length = answer
    same(answer, bulk_frames.decode_answer(bulk_frames.encode_answer(status, version, tag, length)))


def _bulk_answers() -> list[bytes]:
    return [bulk_frames.encode_answer(status, 7, 5, 1 << 20) for status in bulk_frames.Status]


def _manifest(data: bytes) -> None:
    value = Manifest.decode(data)
    same(value, Manifest.decode(value.encode()))
    if value.encode() not in _manifests():  # a repeated or an extra key is the same manifest
        raise WrongAccept("another manifest has the root of this one")


def _manifests() -> list[bytes]:
    image = memoryview(bytes(range(256)) * 64)
    spec = TensorSpec(name="w", dtype="float32", shape=(64, 64), offset=0, nbytes=64 * 64 * 4)
    halves = {"a": hashed(image, [Run(0, 9000)]), "b": hashed(image, [Run(9000, 16384 - 9000)])}
    return [
        Manifest.build(3, image, [spec], chunk_bytes=4096).encode(),
        Manifest.join(3, [spec], halves).encode(),
    ]


def _pipe(data: bytes) -> None:
    """One byte for the direction, then a frame."""
    side, frame = data[:1], data[1:]
    if len(frame) < pipe.PREFIX.size:
        raise pipe.BadFrame("short")
    pipe.length(frame[: pipe.PREFIX.size])
    body = frame[pipe.PREFIX.size :]
    value = pipe.item(body) if side == b"i" else pipe.answer(body)
    again = pipe.pack(value)  # compared as bytes: a score may be no number
    body = again[pipe.PREFIX.size :]
    same(again, pipe.pack(pipe.item(body) if side == b"i" else pipe.answer(body)))


def _pipes() -> list[bytes]:
    items: list[pipe.Item] = [
        pipe.ScoreItem("train", 3, [1, 2, 70000]),
        pipe.ScoreItem("train", 3, [1], CaseLimits(30.0, (2.0, 4.5))),
        pipe.ProblemItem("train", 3),
    ]
    answers: list[pipe.Answer] = [
        pipe.Ready(),
        pipe.ScoreOut(0.5),
        pipe.ScoreOut(1.0, tests=CaseTimes((0.1, 3.0), cut=True)),
        pipe.ProblemOut("2+2?", [1, 2]),
        pipe.Failed("why"),
    ]
    return [b"i" + pipe.pack(it) for it in items] + [b"a" + pipe.pack(it) for it in answers]


def _experts(data: bytes) -> None:
    """Two bytes with the number of rows, then an engine's report about them."""
    count, raw = int.from_bytes(data[:2], "little"), data[2:]
    same(raw, table(raw, count).astype("<i4").tobytes())


def _expert_tables() -> list[bytes]:
    tables = [np.arange(24, dtype="<i4") * scale for scale in (1, 100, 10_000)]
    return [b"\x04\0" + rows.tobytes() for rows in tables]


def _tool_calls(data: bytes) -> None:
    """Text of a model: the result does not depend on how the text is cut."""
    text = data.decode(errors="replace")
    for form in (HERMES, MISTRAL):
        same(_calls_in(form, [text]), _calls_in(form, list(text)))


def _calls_in(form: Form, parts: list[str]) -> list[str | ToolCall]:
    reader = ToolText(form, ["f"])
    found: list[str | ToolCall] = []
    for one in [*(each for part in parts for each in reader.feed(part)), *reader.end()]:
        if found and isinstance(one, str) and isinstance(found[-1], str):
            found[-1] += one
        else:
            found.append(one)
    return found


def _tool_texts() -> list[bytes]:
    call = '{"name": "f", "arguments": {"a": [1, null]}}'
    return [
        f"Well. <tool_call>{call}</tool_call> <tool_call>{call}</tool_call>".encode(),
        f"[TOOL_CALLS][{call}]".encode(),
    ]
