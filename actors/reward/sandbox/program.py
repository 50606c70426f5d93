"""Child process that becomes a program: confined, it calls a function.

It writes the function's result.

Runs inside the sandbox. It never returns to the zygote's code.
"""

import contextlib
import fcntl
import gc
import math
import os
import random
import resource
import struct
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn, cast

from gleaner.actors.reward.sandbox.confinement import RESULT, Confiner
from gleaner.actors.reward.sandbox.port import Limits, Work

NO_MEMORY, RAISED, TOO_LONG = 77, 1, 78
"""Exit codes. A program may end with them as well: each is its own fault."""
PREFIX = struct.Struct("<I")
CONFINED = b"+"


@dataclass(frozen=True, slots=True)
class Start:
    """Work that the zygote does for a program, because the same work in a fork costs copies of pages. call:
    None if its module is not loaded yet."""

    work: Work
    limits: list[tuple[int, tuple[int, int]]]
    call: Callable[[bytes], bytes] | None

    @staticmethod
    def of(work: Work, confiner: Confiner) -> "Start":
        """Prepare the next program. Without a new seed all programs would have the same random numbers."""
        random.seed()
        known = sys.modules.get(work.function.partition(":")[0])
        call = getattr(known, work.function.partition(":")[2], None)
        return Start(work, confiner.limits(work.limits), call)


def become(start: Start, confiner: Confiner, fds: list[int], ready: int) -> NoReturn:
    """Run a program in this process and end it. fds: stdout, stderr and result. ready: takes `CONFINED`, or
    the reason why this process could not be confined."""
    code, work = RAISED, start.work
    try:
        try:
            ready, ruleset = _arrange(fds, ready, confiner.ruleset())
            call = start.call or find(work.function)
            confiner.confine(start.limits, ruleset)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the program must not run
            os.write(ready, f"{type(error).__name__}: {error}"[:500].encode())
        else:
            os.write(ready, CONFINED)
            os.close(ready)
            code = _serve(call, work) if work.each_s else _run(call, work.payload, work.limits)
    finally:
        os._exit(code)


def find(function: str) -> Callable[[bytes], bytes]:
    """The function that "module:name" names. Raises ImportError, AttributeError."""
    module, _, name = function.partition(":")
    return cast("Callable[[bytes], bytes]", getattr(import_module(module), name))


def _arrange(fds: list[int], ready: int, ruleset: int) -> tuple[int, int]:
    """Descriptors 0 to 3, `ready` and `ruleset` behind them, and no other."""
    wanted = [os.open(os.devnull, os.O_RDONLY), *fds, ready, *([ruleset] if ruleset >= 0 else [])]
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, len(wanted)) for fd in wanted]
    for place, fd in enumerate(high):
        os.dup2(fd, place)
    os.closerange(len(high), 2**20)
    return RESULT + 1, RESULT + 2 if ruleset >= 0 else -1


def _run(call: Callable[[bytes], bytes], payload: bytes, limits: Limits) -> int:
    gc.enable()
    try:
        result = call(payload)
        if len(result) > limits.result_bytes:
            return TOO_LONG
        _write(PREFIX.pack(len(result)) + result)
    except MemoryError:
        return NO_MEMORY
    except SystemExit:
        return RAISED
    except BaseException:  # noqa: BLE001  # the program's own end, written to its stderr
        traceback.print_exc()
        return RAISED
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # it closed them
                stream.flush()
    return 0


def _serve(call: Callable[[bytes], bytes], work: Work) -> int:
    """Answer payloads until the host closes its end. The limit of each is moved ahead of what was used: the
    function is ours, and executes nothing."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    while True:
        prefix = _read(PREFIX.size)
        if not prefix:
            return 0
        payload = _read(*PREFIX.unpack(prefix))
        soft = math.ceil(time.process_time() + work.each_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (soft if hard < 0 else min(soft, hard), hard))
        if code := _run(call, payload, work.limits):
            return code


def _read(count: int) -> bytes:
    parts: list[bytes] = []
    while count and (part := os.read(RESULT, count)):
        parts.append(part)
        count -= len(part)
    return b"" if count else b"".join(parts)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(RESULT, view) :]
