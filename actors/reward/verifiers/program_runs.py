"""Runs of model-written programs, test by test, inside the sandbox.

It knows inputs and no expected output.

`run` executes none of the model's code in its own process: a child does. Each test with stdin has its own
child, so that modules are fresh and an exit is an exit. All calls of a function share one, so that they cost
microseconds. `calls` has no child, which is twice as fast and loses all where a call ends the process. The
output is what the model's code wrote, even if it changed its own process. The expected output is elsewhere.
"""

import atexit
import builtins
import contextlib
import io
import json
import linecache
import math
import os
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NoReturn

from gleaner.actors.reward.verifiers.stdin_runs import (
    EXITED,
    MAX_OUTPUT_BYTES,
    RAISED,
    TEXT,
    TIMEOUT,
    TOO_LONG,
    VALUE,
    Result,
    StdinTests,
    failure,
    limit_processor,
    nameless_file,
    wait_for,
    write_all,
)

SOURCE = "solution.py"
_HEAD = struct.Struct("<cdI")
"""Header of a call's result: its kind, processor seconds, bytes that follow."""
_KINDS = {b"v": VALUE, b"r": RAISED, b"t": TOO_LONG}


def run(payload: bytes) -> bytes:
    """The result of each test, as JSON: a list of `Result`, shorter where `stop` is set and one was not done.

    payload: JSON with source, call (a function, or "" for stdin), inputs, test_s (processor time of a test)
    and stop (at the first test that is not done).
    """
    asked = json.loads(payload)
    source, inputs, test_s = asked["source"], asked["inputs"], asked["test_s"]
    results: list[Result] = []
    with open(SOURCE, "w", encoding="utf-8", errors="surrogatepass") as file:  # for tracebacks and inspect
        file.write(source)
    if asked["call"]:
        while len(results) < len(inputs) and not (results and asked["stop"] and results[-1][0] != VALUE):
            results += _calls(asked, inputs[len(results) :])
    else:
        code, problem = _compiled(source)
        tests = StdinTests()
        for text in inputs:
            given = text.encode("utf-8", "surrogatepass")
            results.append(
                tests.run(lambda: _be_program(code), given, test_s) if code else (RAISED, problem, 0.0)
            )
            if asked["stop"] and results[-1][0] != TEXT:
                break
    return json.dumps(results[: len(inputs)]).encode("utf-8", "replace")


def calls(payload: bytes) -> bytes:
    """As `run`, for a function whose calls never end this process."""
    asked, dumps = json.loads(payload), json.dumps  # the model's code may replace what a module holds
    test_s = asked["test_s"]
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    lines = asked["source"].splitlines(keepends=True)
    linecache.cache[SOURCE] = (len(asked["source"]), None, lines, SOURCE)  # for tracebacks and inspect
    results = [_result(*one, test_s) for one in _called(asked, asked["inputs"])]
    return dumps(results).encode("utf-8", "replace")


def _compiled(source: str) -> tuple[Any, str]:
    try:
        return compile(source, SOURCE, "exec", dont_inherit=True), ""
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        return None, f"{type(error).__name__}: {error}"[:500]


def _be_program(code: Any) -> NoReturn:
    """Become the model's program, as if Python were started with it."""
    exit_code = 1
    try:
        _fresh_streams()
        main = ModuleType("__main__")
        vars(main).update(__file__=SOURCE, __builtins__=builtins)
        sys.modules["__main__"] = main
        sys.argv = [SOURCE]
        sys.path.insert(0, os.getcwd())
        exit_code = _exit_code(lambda: exec(code, vars(main)))
        if exit_code == 0:
            exit_code = _exit_code(_finish)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(exit_code)


def _finish() -> None:
    """Python's actions at its end: wait for threads, then run the registered functions."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()


def _exit_code(call: Callable[[], object]) -> int:
    try:
        call()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        os.write(2, str(end.code)[:1000].encode("utf-8", "replace"))
        return 1
    except BaseException:  # noqa: BLE001  # the program's own end
        os.write(2, traceback.format_exc(limit=5)[-4000:].encode("utf-8", "replace"))
        return 1
    return 0


def _fresh_streams() -> None:
    """Streams of the new descriptors 0 to 2; those that Python has may hold what was read before."""
    given, out, err = (io.FileIO(fd, mode, closefd=False) for fd, mode in ((0, "r"), (1, "w"), (2, "w")))
    sys.stdin = io.TextIOWrapper(io.BufferedReader(given), encoding="utf-8", errors="surrogateescape")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(out), encoding="utf-8", errors="surrogateescape")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(err), encoding="utf-8", errors="backslashreplace", write_through=True
    )


def _calls(asked: dict[str, Any], inputs: list[Any]) -> list[Result]:
    """Calls of a function in one child, up to the first that ends it."""
    out = nameless_file("told")
    try:
        pid = os.fork()
        if pid == 0:
            _be_function(asked, inputs, out)
        status, cpu_s = wait_for(pid)
        results = _frames(out, len(inputs), asked["test_s"])
    finally:
        os.close(out)
    done = len(results) == len(inputs) or (asked["stop"] and results and results[-1][0] != VALUE)
    if not done:
        spent_s = cpu_s - sum(one[2] for one in results)
        ended = EXITED, f"exit code {os.waitstatus_to_exitcode(status)} within a call", spent_s
        results.append(failure(status, spent_s, math.inf) or ended)
    return results


def _frames(out: int, most: int, test_s: float) -> list[Result]:
    """The tests that a child reported."""
    results: list[Result] = []
    at = 0
    while len(results) < most:
        head = os.pread(out, _HEAD.size, at)
        if len(head) < _HEAD.size:
            break
        kind, cpu_s, size = _HEAD.unpack(head)
        data = os.pread(out, min(size, MAX_OUTPUT_BYTES), at + _HEAD.size)
        if len(data) < size or kind not in _KINDS:
            break
        at += _HEAD.size + size
        cpu_s = cpu_s if 0.0 <= cpu_s < 1e6 else 0.0
        results.append(_result(kind, cpu_s, data, test_s))
    return results


def _result(kind: bytes, cpu_s: float, data: bytes, test_s: float) -> Result:
    if cpu_s > test_s:
        return TIMEOUT, "", cpu_s
    return _KINDS[kind], data.decode("utf-8", "replace"), cpu_s


def _be_function(asked: dict[str, Any], inputs: list[Any], out: int) -> NoReturn:
    """Call the model's function in this process, which ends then; write the result of each call to `out`."""
    send, pack = write_all, _HEAD.pack
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1):
            os.dup2(nothing, fd)
        os.dup2(out, 3)
        os.closerange(4, 64)
        for kind, cpu_s, data in _called(asked, inputs):
            send(3, pack(kind, cpu_s, len(data)) + data)
    finally:
        os._exit(0)


def _called(asked: dict[str, Any], inputs: list[Any]) -> Iterator[tuple[bytes, float, bytes]]:
    """Run the model's module, then call its function with each input: kind, processor seconds and text."""
    dumps, clock, test_s = json.dumps, time.process_time, asked["test_s"]
    limit_processor(test_s)
    module = ModuleType("solution")
    vars(module).update(__file__=SOURCE)
    sys.modules["solution"] = module
    sys.path.insert(0, os.getcwd())
    function: Any = None
    problem = ""
    try:
        exec(compile(asked["source"], SOURCE, "exec", dont_inherit=True), vars(module))
        function = _found(module, asked["call"])
    except BaseException as error:  # noqa: BLE001  # of the model's own
        problem = _words(error)
    for args, kwargs in inputs:
        began_s = clock()
        limit_processor(test_s)
        try:
            if function is None:
                kind, text = b"r", problem
            else:
                kind, text = b"v", dumps(function(*args, **kwargs), default=_plain)
        except BaseException as error:  # noqa: BLE001  # of the model's own
            kind, text = b"r", _words(error)
        data = text.encode("utf-8", "replace")
        if len(data) > MAX_OUTPUT_BYTES:
            kind, data = b"t", f"a value of {len(data)} bytes".encode()
        yield kind, clock() - began_s, data
        if asked["stop"] and kind != b"v":
            break


def _found(module: ModuleType, name: str) -> Any:
    """The function, also as a method of a class Solution, as LeetCode has it."""
    if name in vars(module):
        return vars(module)[name]
    if "Solution" in vars(module):
        return getattr(vars(module)["Solution"](), name)
    raise NameError(f"it defines no function {name!r}")


def _plain(value: Any) -> Any:
    """What JSON lacks and numeric libraries return."""
    return value.tolist()


def _words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except BaseException:  # noqa: BLE001  # of the model's own
        return "an exception without a text"
