"""A scorer that harms its worker process as the first token selects; for the tests of the pool."""

import ctypes
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FINE, HANG, ABORT, RAISE, PRINT, ALLOCATE, EXIT, SEGFAULT, NAN, ONCE, CHATTER, FORK = range(12)
TEXT, INFINITE, NOTHING, RAISE_ONCE = range(12, 16)


@dataclass
class Posed:
    question: str
    prompt_tokens: list[int]


class Hostile:
    def __init__(self, marks: str) -> None:
        self.marks = Path(marks)

    def problem(self, split: str, index: int) -> Posed:
        if index < 0:
            raise LookupError(f"no problem {index}")
        return Posed(f"{split} {index}?", [index, index + 1])

    def score(self, split: str, index: int, tokens: Sequence[int]) -> float:
        match tokens[0]:
            case 1:
                time.sleep(3600)
            case 2:
                os.abort()
            case 3:
                raise ValueError("bad answer")
            case 4:
                print("x" * 100_000, flush=True)
                print("y" * 100_000, file=sys.stderr, flush=True)
                os.write(1, b"\xff" * 1000)
            case 5:
                hoard = [bytearray(2**33)]  # at once: filling it would take longer than the deadline
                return float(len(hoard))
            case 6:
                os._exit(3)
            case 7:
                ctypes.string_at(0)
            case 8:
                return float("nan")
            case 9:  # crashes the first time
                mark = self.marks / "once"
                if not mark.exists():
                    mark.touch()
                    os.abort()
            case 10:
                for descriptor in range(3, 64):
                    try:
                        os.write(descriptor, b"\xff" * 100)
                    except OSError:
                        continue
            case 11:
                child = os.fork()
                if child == 0:
                    time.sleep(3600)
                (self.marks / "forked").write_text(str(child))
                time.sleep(3600)
            case 12:
                return "0.5"  # type: ignore[return-value]
            case 13:
                return float("-inf")
            case 14:
                return None  # type: ignore[return-value]
            case 15:
                mark = self.marks / "raised"
                if not mark.exists():
                    mark.touch()
                    raise ValueError("not yet")
        return index / 10


def make(config: Mapping[str, object]) -> Hostile:
    if config.get("unusable"):
        raise KeyError("the task is not known")
    if config.get("stillborn"):
        os._exit(9)
    return Hostile(str(config["marks"]))
