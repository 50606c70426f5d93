"""Golden bytes: every message and frame has its recorded bytes and meaning."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest

from gleaner.chaos.examples import example
from gleaner.rlctl import vocabulary
from gleaner.supervisor.errors import BadBody
from gleaner.supervisor.message import Message, decode_body, encode_body
from tests.golden import book, frames

ADD = "run `python -m tests.golden`, and commit what it writes"
KINDS = vocabulary.kinds()
GOLDEN = {name: entry for page in book.written().values() for name, entry in page.items()}
CASES = {case.name: case for case in frames.cases()}


def plain(message: Message) -> Any:
    def listed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: listed(inner) for key, inner in value.items()}
        return [listed(item) for item in value] if isinstance(value, list | tuple) else value

    return listed(msgspec.to_builtins(message, builtin_types=(bytes,)))


def unpacked(data: bytes) -> Any:
    return msgpack.unpackb(data, strict_map_key=False)


def test_golden_entries_match_kinds_and_frames_exactly() -> None:
    assert len(KINDS) > 100
    missing = sorted((KINDS.keys() | CASES.keys()) - GOLDEN.keys())
    assert not missing, f"no golden bytes of {', '.join(missing)}: {ADD}"
    left = sorted(GOLDEN.keys() - KINDS.keys() - CASES.keys())
    assert not left, f"golden bytes of what is gone: {', '.join(left)}: {ADD}"


@pytest.mark.parametrize("kind", KINDS)
def test_message_matches_its_golden_bytes_both_ways(kind: str) -> None:
    value, golden = example(KINDS[kind]), GOLDEN[kind]
    assert encode_body(value) == golden.parts[0], (
        f"the bytes of {kind} changed: processes of another release and journals on disk hold the old ones. "
        f"If that is meant, `python -m tests.golden --change {kind}`"
    )
    assert decode_body(kind, golden.parts[0]) == value
    assert json.loads(golden.meaning) == json.loads(msgspec.json.encode(value))
    # Any other implementation reads the same.
    assert unpacked(golden.parts[0]) == plain(value)


@pytest.mark.parametrize("kind", KINDS)
def test_fields_of_newer_minor_version_are_skipped_anywhere(kind: str) -> None:
    def newer(value: Any) -> Any:
        is_map = isinstance(value, dict) and any(key == "key0" or not isinstance(key, str) for key in value)
        if isinstance(value, dict) and not is_map:  # a struct
            return {**{key: newer(inner) for key, inner in value.items()}, "of tomorrow": [1, {"a": b"b"}]}
        return [newer(item) for item in value] if isinstance(value, list) else value

    value = example(KINDS[kind])
    changed = newer(unpacked(GOLDEN[kind].parts[0]))
    assert changed["of tomorrow"]
    assert decode_body(kind, msgpack.packb(changed)) == value


@pytest.mark.parametrize("kind", KINDS)
def test_missing_field_of_older_version_defaults_or_is_refused(kind: str) -> None:
    golden = unpacked(GOLDEN[kind].parts[0])
    for field in msgspec.structs.fields(KINDS[kind]):
        older = msgpack.packb({key: value for key, value in golden.items() if key != field.encode_name})
        if field.required:
            with pytest.raises(BadBody, match=f"missing required field `{field.encode_name}`"):
                decode_body(kind, older)
        else:
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            found = decode_body(kind, older)
            assert getattr(found, field.name) == default
            assert {**plain(found), field.encode_name: golden[field.encode_name]} == golden


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_or_misnamed_body_is_refused(kind: str) -> None:
    whole = GOLDEN[kind].parts[0]
    for end in range(len(whole)):
        with pytest.raises(BadBody):
            decode_body(kind, whole[:end])
    with pytest.raises(BadBody):
        decode_body(kind, msgpack.packb({**unpacked(whole), "type": "Another"}))


@pytest.mark.parametrize("name", CASES)
def test_frame_matches_its_golden_bytes_both_ways(name: str) -> None:
    case, golden = CASES[name], GOLDEN[name]
    assert tuple(case.parts) == golden.parts, (
        f"the bytes of {name} changed: is that a new minor version, or another major one (transport/)? If it "
        f"is meant, `python -m tests.golden --change '{name}'`"
    )
    assert case.decode(list(golden.parts)) == case.value
    assert json.loads(golden.meaning) == json.loads(msgspec.json.encode(case.meaning))
    if case.packed:
        assert [unpacked(part) for part in golden.parts] == case.meaning


@pytest.mark.parametrize("name", [case.name for case in CASES.values() if case.packed])
def test_elements_appended_by_newer_minor_version_are_skipped(name: str) -> None:
    case = CASES[name]
    newer = [msgpack.packb([*unpacked(part), "of tomorrow", {"a": [1]}]) for part in GOLDEN[name].parts]
    assert case.decode(newer) == case.value


def test_token_frame_header_may_grow() -> None:
    header, columns = GOLDEN["TokenFrame"].parts
    newer = [msgpack.packb([*unpacked(header), "of tomorrow"]), columns]
    assert CASES["TokenFrame"].decode(newer) == CASES["TokenFrame"].value


def test_command_adds_removes_and_changes_only_requested_entries(tmp_path: Path) -> None:
    # In a process of its own, on a copy of the files: a class defined here would stay registered.
    script = f"""
import shutil, sys
from pathlib import Path
from tests.golden import __main__ as command, book
copy = Path({str(tmp_path)!r})
for page in book.HERE.glob("*.txt"):
    shutil.copy(page, copy)
book.HERE = copy
page = copy / "supervisor.message.txt"
page.write_text(page.read_text().replace("Done", "Finished"))
other = copy / "transport.txt"
other.write_text(other.read_text().replace("9501ad", "9502ad"))
print(command.main([]), command.main([]), command.main(["--change", "TokenFrame"]), command.main([]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=book.HERE.parents[1]
    )
    lines = ran.stdout.splitlines()
    assert lines[:3] == [
        "added    supervisor.message: Done",
        "HELD     transport: TokenFrame: its bytes differ; --change TokenFrame if that is meant",
        "removed  Finished",
    ], ran.stderr
    assert lines[3:] == [lines[1], "changed  transport: TokenFrame", "1 1 0 0"]
