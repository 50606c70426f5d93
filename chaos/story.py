"""Story of a run: one line for each fault, message, commit and violation.

Each line has its virtual time. Owns the texts, and which parts of a message are left out. Pure.
"""

from array import array
from collections.abc import Iterator

import msgspec

from gleaner.chaos.faults import AnyFault, description
from gleaner.chaos.invariants.check import Found
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
from gleaner.chaos.invariants.gateway_facts import CallOver, CallSent
from gleaner.chaos.invariants.stream_facts import CreditGranted, FrameArrived
from gleaner.supervisor.message import kind_of

MAX_CHARS = 400
"""Of the fields of one message."""
COLUMNS = {"tickets": "I", "tokens": "I", "prompt": "I", "prefix": "I", "logprobs": "f", "flags": "B"}
"""Fields that are columns of numbers, and the kind of their numbers (little-endian, as `array` has them)."""
MAX_NUMBERS = 12
"""Numbers shown of one column."""
TOLD_BETTER = ("net ", "events ", "snapshot ")
ARROWS = {"in": "<-", "out": "->", "local": "--"}
"""Direction: received, sent, or stayed in the process."""


def line_of(fact: Fact) -> str:
    """One fact. Messages are shown with the process that saw them: a message between two processes has two
    lines, one where it was sent and one where it arrived."""
    match fact:
        case MessagePassed():
            way = f"{fact.source} {ARROWS.get(fact.direction, fact.direction)} {fact.to}"
            what = f"{fact.process:<18} {fact.mode:<5} {way}: {kind_of(fact.message)} {fields(fact.message)}"
        case Committed():
            kinds = ", ".join(f"{kind_of(one)} {fields(one)}" for one in fact.messages)
            rows = "snapshot" if fact.snapshot else "commit"
            what = f"{fact.host:<18} {rows} of {fact.stream}#{fact.incarnation}: {kinds}"
        case FramesAcknowledged():
            what = f"{'':<18} frames of {fact.stream}#{fact.incarnation} up to {fact.seq} are acknowledged"
        case CreditGranted():
            what = f"{'':<18} frames of {fact.stream}#{fact.incarnation} may be sent up to {fact.upto}"
        case FrameArrived():
            what = f"{'':<18} frame {fact.seq} of {fact.stream}#{fact.incarnation} is {fact.fate}"
        case FrameDelivered():
            came = f"{fact.first} to {fact.first + fact.count - 1}" if fact.count > 1 else str(fact.first)
            handed = ", ".join(map(str, fact.numbers)) or "nothing"
            which = (
                "all" if list(fact.numbers) == list(range(fact.first, fact.first + fact.count)) else handed
            )
            what = f"{'':<18} message {came} of {fact.link} (session {fact.session[0]}) handed up: {which}"
        case RecordWritten():
            newest = f"the newest is of step {fact.newest}" if fact.newest >= 0 else "there is none"
            what = f"{fact.host:<18} wants step {fact.step} on record; of the whole states here {newest}"
        case ServedImage():
            digest = fact.digest.hex()[:12]
            what = f"{fact.host:<18} has weights of version {fact.version}, digest {digest}"
        case LateWait():
            what = (
                f"{fact.process:<18} {fact.who} waits for {fact.what} on {fact.on}, late {fact.late_s:.1f} s"
            )
        case ProcessFrozen():
            end = fact.ended and f", ended: {fact.ended}"
            what = f"{fact.process:<18} hangs for {fact.for_s:.1f} of {fact.limit_s:.1f} s{end}"
        case DeclaredDead():
            what = f"{fact.host:<18} is declared dead by a head that hung for {fact.stood_still_s:.1f} s"
        case Measured():
            what = f"{fact.process:<18} {fact.what}: {fact.value:g} of {fact.limit:g}"
        case Failed():
            what = f"{fact.process:<18} failed: {fact.text}"
        case VerifierAnswered():
            what = f"{'':<18} problem {fact.index} of {fact.split}: {len(fact.tokens) // 4} tokens are scored"
        case RequestAsked():
            what = f"{fact.caller:<18} asks: {fields(fact.request)}"
        case RequestAnswered():
            shown = fields(fact.answer) if fact.answer is not None else fact.refusal or "nothing"
            what = f"{fact.caller:<18} asked for {fact.request.id} at {fact.asked_s:.3f} s and got: {shown}"
        case CommandAnswered():
            shown = fields(fact.answer) if fact.answer is not None else fact.refusal or "nothing"
            message = f"{kind_of(fact.message)} {fields(fact.message)}"
            what = f"{'operator':<18} {fact.command} ({message.rstrip()}) got: {shown}"
        case CallSent():
            what = f"{fact.call.client:<18} calls: {fields(fact.call)}"
        case CallOver():
            parts = [f"{len(got.tokens)} tokens, {got.finish or 'no end'}" for got in fact.choices]
            got = f"{fact.outcome} {fact.status or ''} {fact.error} {'; '.join(parts)}"
            what = f"{fact.call.client:<18} {fact.call.name} of {fact.sent_s:.3f} s is over: {got}"
        case _:
            what = str(fact)
    return f"{fact.at_s:12.6f} {what}"


def line_of_note(note: str) -> str:
    """A line of the simulation's own trace: events of processes, hosts, clocks, disks. "" for events that the
    facts describe better (messages, commits)."""
    time, _, rest = note.rstrip("\n").partition(" ")
    return "" if rest.startswith(TOLD_BETTER) else f"{float(time):12.6f} {rest}"


def line_of_fault(at_s: float, fault: AnyFault, happened: str) -> str:
    """A fault that fired, or missed."""
    return f"{at_s:12.6f} FAULT {happened}: {description(fault)}"


def line_of_found(found: Found) -> str:
    """A violation, where it was detected."""
    return f"{found.at_s:12.6f} VIOLATION of {found.check}: {found.text}"


def fields(message: object) -> str:
    """The fields of a message: numbers and names as they are, long values by their size."""
    text = " ".join(_fields(message))
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 3]}..."


def _fields(message: object) -> Iterator[str]:
    for field in msgspec.structs.fields(type(message)):  # type: ignore[arg-type]  # messages are structs
        value = getattr(message, field.name)
        yield f"{field.name}={_column(field.name, value) or _short(value)}"


def _column(name: str, value: object) -> str:
    """The numbers of a column of tokens, log-probs or tickets; "" for anything else."""
    kind = COLUMNS.get(name)
    if kind is None or not isinstance(value, bytes) or not value or len(value) % array(kind).itemsize:
        return ""
    numbers = array(kind, value)
    shown = " ".join(f"{number:.4g}" if kind == "f" else str(number) for number in numbers[:MAX_NUMBERS])
    return f"[{shown}]" if len(numbers) <= MAX_NUMBERS else f"[{shown} ... {len(numbers)} in all]"


def _short(value: object) -> str:
    if isinstance(value, bytes) and len(value) > 16:
        return f"<{len(value)} bytes>"
    if isinstance(value, bytes):
        return value.hex() or "-"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, msgspec.Struct):
        return f"({fields(value)})"
    if isinstance(value, dict | list | tuple) and len(value) > 4:
        return f"<{len(value)} of them>"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_short(one) for one in value)}]"
    text = str(value)
    return text if text.isprintable() else repr(text)
