"""The small messages of a token stream: hello, have, ack, resend, refused.

Owns their bytes: each is one part, a MessagePack array whose first element names it. (Token frames are the
messages of two parts on the same connection.) Does not own what follows from them.
"""

from typing import Annotated, Final, TypeVar

import msgspec

from gleaner.transport.refusal import BadField, NotAnEnvelope, Truncated, UnknownVersion, WrongParts

MAJOR: Final = 1

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_Seq = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Hello(msgspec.Struct, array_like=True, frozen=True, tag="hello"):
    """Sender: its identity, and `sent`, the last frame that it passed to this connection."""

    major: int
    stream: _Name
    incarnation: _Seq
    sent: _Seq


class Have(msgspec.Struct, array_like=True, frozen=True, tag="have"):
    """Receiver: journaled up to `acked`, in hand up to `delivered`; `sent` repeats the hello's; send up to
    `window` frames beyond the last acknowledgement."""

    major: int
    acked: _Seq
    delivered: _Seq
    sent: _Seq
    window: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class Ack(msgspec.Struct, array_like=True, frozen=True, tag="ack"):
    """Receiver: journaled up to `seq`; the window moves along."""

    seq: _Seq


class Resend(msgspec.Struct, array_like=True, frozen=True, tag="resend"):
    """Receiver: frames are missing from `seq` on."""

    seq: _Seq


class Refused(msgspec.Struct, array_like=True, frozen=True, tag="refused"):
    """Receiver: this incarnation of the stream is not wanted; stop."""

    why: Annotated[str, msgspec.Meta(max_length=255)]


FromReceiver = Have | Ack | Resend | Refused

_encoder = msgspec.msgpack.Encoder()
_hello_decoder = msgspec.msgpack.Decoder(Hello)
_receiver_decoder: msgspec.msgpack.Decoder[FromReceiver] = msgspec.msgpack.Decoder(FromReceiver)
_T = TypeVar("_T")


def encode(message: Hello | FromReceiver) -> list[bytes]:
    """Pack a message into its one part."""
    return [_encoder.encode(message)]


def decode_hello(parts: list[bytes]) -> Hello:
    """Unpack a message of a sender. Raises a `FrameError`."""
    hello = _decode(_hello_decoder, parts)
    if hello.major != MAJOR:
        raise UnknownVersion("token stream", hello.major, MAJOR)
    return hello


def decode_from_receiver(parts: list[bytes]) -> FromReceiver:
    """Unpack a message of a receiver. Raises a `FrameError`."""
    message = _decode(_receiver_decoder, parts)
    if isinstance(message, Have) and message.major != MAJOR:
        raise UnknownVersion("token stream", message.major, MAJOR)
    return message


def _decode(decoder: "msgspec.msgpack.Decoder[_T]", parts: list[bytes]) -> _T:
    if len(parts) != 1:
        raise WrongParts(f"a control message of a stream has 1 part, this has {len(parts)}")
    try:
        return decoder.decode(parts[0])
    except msgspec.ValidationError as error:
        raise BadField(f"stream control: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        kind = Truncated if "truncated" in str(error) else NotAnEnvelope
        raise kind(f"stream control: {error}") from None
