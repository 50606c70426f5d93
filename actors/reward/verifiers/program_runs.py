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

from gleaner.actors.reward.verifiers import watched_child
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

    payload: JSON with source, call (a function, or "" for stdin), inputs, tests_s (processor time of each
    test), watched (whether a test is ended at once at its time, and the first call's holds the module's) and
    stop (at the first test that is not done).
    """
    asked = json.loads(payload)
    source, inputs = asked["source"], asked["inputs"]
    results: list[Result] = []
    if asked["watched"]:
        watched_child.block()
    with open(SOURCE, "w", encoding="utf-8", errors="surrogatepass") as file:  # for tracebacks and inspect
        file.write(source)
    if asked["call"]:
        while len(results) < len(inputs) and not (results and asked["stop"] and results[-1][0] != VALUE):
            results += _calls(asked, len(results))
    else:
        code, problem = compiled(source)
        tests = StdinTests(watched=asked["watched"])
        for text, test_s in zip(inputs, asked["tests_s"], strict=True):
            given = text.encode("utf-8", "surrogatepass")
            results.append(
                tests.run(lambda: be_program(code), given, test_s) if code else (RAISED, problem, 0.0)
            )
            if asked["stop"] and results[-1][0] != TEXT:
                break
    return json.dumps(results[: len(inputs)]).encode("utf-8", "replace")


def calls(payload: bytes) -> bytes:
    """As `run`, for a function whose calls never end this process."""
    asked, dumps = json.loads(payload), json.dumps  # the model's code may replace what a module holds
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    lines = asked["source"].splitlines(keepends=True)
    linecache.cache[SOURCE] = (len(asked["source"]), None, lines, SOURCE)  # for tracebacks and inspect
    results = [_result(*one) for one in zip(_called(asked, 0), asked["tests_s"], strict=False)]
    return dumps(results).encode("utf-8", "replace")


def compiled(source: str) -> tuple[Any, str]:
    """The code of a program in Python, None with the text of its error."""
    try:
        return compile(source, SOURCE, "exec", dont_inherit=True), ""
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        return None, f"{type(error).__name__}: {error}"[:500]


def be_program(code: Any) -> NoReturn:
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


def _calls(asked: dict[str, Any], first: int) -> list[Result]:
    """Calls of a function in one child, from the `first` input up to the first call that ends it."""
    out, tests_s = nameless_file("told"), asked["tests_s"]
    try:
        pid = os.fork()
        if pid == 0:
            _be_function(asked, first, out)
        watch = _Calls(out, tests_s, first)
        status, cpu_s, late = watched_child.ended(pid, watch.may_use) if asked["watched"] else wait_for(pid)
        results = _frames(out, tests_s[first:])
    finally:
        os.close(out)
    done = len(results) == len(tests_s) - first or (asked["stop"] and results and results[-1][0] != VALUE)
    if not done:
        spent_s = cpu_s - sum(one[2] for one in results)
        ended = EXITED, f"exit code {os.waitstatus_to_exitcode(status)} within a call", spent_s
        results.append(failure(status, spent_s, 0.0 if late else math.inf) or ended)
    return results


class _Calls:
    """How much processor time a child may use by the call that it is in. Its module may use as much as the
    first test, which has that time within its own."""

    def __init__(self, out: int, tests_s: list[float], first: int) -> None:
        self._out, self._tests_s, self._at, self._call = out, tests_s, 0, first
        self._from_s = tests_s[0] if first else 0.0

    def may_use(self, used_s: float) -> float:
        """See `watched_child.ended`."""
        while len(head := os.pread(self._out, _HEAD.size, self._at)) == _HEAD.size:
            self._at += _HEAD.size + _HEAD.unpack(head)[2]
            self._call += 1
            self._from_s = used_s
        return self._from_s + self._tests_s[min(self._call, len(self._tests_s) - 1)]


def _frames(out: int, tests_s: list[float]) -> list[Result]:
    """The tests that a child reported. tests_s: limits of those that it was to do."""
    results: list[Result] = []
    at = 0
    while len(results) < len(tests_s):
        head = os.pread(out, _HEAD.size, at)
        if len(head) < _HEAD.size:
            break
        kind, cpu_s, size = _HEAD.unpack(head)
        data = os.pread(out, min(size, MAX_OUTPUT_BYTES), at + _HEAD.size)
        if len(data) < size or kind not in _KINDS:
            break
        at += _HEAD.size + size
        cpu_s = cpu_s if 0.0 <= cpu_s < 1e6 else 0.0
        results.append(_result((kind, cpu_s, data), tests_s[len(results)]))
    return results


def _result(told: tuple[bytes, float, bytes], test_s: float) -> Result:
    kind, cpu_s, data = told
    if cpu_s > test_s:
        return TIMEOUT, "", cpu_s
    return _KINDS[kind], data.decode("utf-8", "replace"), cpu_s


def _be_function(asked: dict[str, Any], first: int, out: int) -> NoReturn:
    """Call the model's function in this process, which ends then; write the result of each call to `out`."""
    send, pack = write_all, _HEAD.pack
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1):
            os.dup2(nothing, fd)
        os.dup2(out, 3)
        os.closerange(4, 64)
        watched_child.unblock()
        for kind, cpu_s, data in _called(asked, first):
            send(3, pack(kind, cpu_s, len(data)) + data)
    finally:
        os._exit(0)


def _called(asked: dict[str, Any], first: int) -> Iterator[tuple[bytes, float, bytes]]:
    """Run the model's module, then call its function with each input from the `first` on: kind, processor
    seconds and text."""
    watched = asked["watched"]
    dumps, clock = json.dumps, watched_child.clock() if watched else time.process_time
    began_s = clock()
    limit_processor(asked["tests_s"][0])
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
    for number, (args, kwargs) in enumerate(asked["inputs"][first:], first):
        if number or not watched:
            began_s = clock()
        limit_processor(asked["tests_s"][number])
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
