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
import resource
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NoReturn

TEXT, VALUE, RAISED, EXITED, TIMEOUT, TOO_LONG = "text", "value", "raised", "exited", "timeout", "too long"
"""The result kinds of a test: the text of stdout, a value as JSON, or why there is neither."""
MAX_OUTPUT_BYTES = 2**20
"""Most output of one test."""
SOURCE = "solution.py"
_HEAD = struct.Struct("<cdI")
"""Header of a call's result: its kind, processor seconds, bytes that follow."""
_KINDS = {b"v": VALUE, b"r": RAISED, b"t": TOO_LONG}

Result = tuple[str, str, float]
"""The result of a test: its kind, the text, processor seconds."""


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
        texts = _Texts()
        for text in inputs:
            results.append(texts.run(code, text, test_s) if code else (RAISED, problem, 0.0))
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


class _Texts:
    """Tests with stdin. Input and output are files without a name, so that no test waits for a reader."""

    def __init__(self) -> None:
        self._given, self._out, self._err = (_nameless(name) for name in ("given", "out", "err"))

    def run(self, code: Any, text: str, test_s: float) -> Result:
        """One test, in a child of its own."""
        for fd in (self._given, self._out, self._err):
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
        _write(self._given, text.encode("utf-8", "surrogatepass"))
        os.lseek(self._given, 0, os.SEEK_SET)
        pid = os.fork()
        if pid == 0:
            _be_program(code, (self._given, self._out, self._err), test_s)
        status, cpu_s = _ended(pid)
        if problem := _problem(status, cpu_s, test_s):
            return problem
        if os.fstat(self._out).st_size > MAX_OUTPUT_BYTES:
            return TOO_LONG, f"more than {MAX_OUTPUT_BYTES} bytes of output", cpu_s
        written = os.pread(self._out, MAX_OUTPUT_BYTES, 0).decode("utf-8", "replace")
        if os.WEXITSTATUS(status):
            last = os.pread(self._err, 2**16, max(0, os.fstat(self._err).st_size - 2**16))
            lines = last.decode("utf-8", "replace").strip().splitlines()
            return RAISED, (lines[-1] if lines else f"exit code {os.WEXITSTATUS(status)}")[:500], cpu_s
        return TEXT, written, cpu_s


def _be_program(code: Any, fds: tuple[int, ...], test_s: float) -> NoReturn:
    """Become the model's program, as if Python were started with it."""
    exit_code = 1
    try:
        for place, fd in enumerate(fds):
            os.dup2(fd, place)
        os.closerange(3, 64)
        _limit(test_s)
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
    out = _nameless("told")
    try:
        pid = os.fork()
        if pid == 0:
            _be_function(asked, inputs, out)
        status, cpu_s = _ended(pid)
        results = _frames(out, len(inputs), asked["test_s"])
    finally:
        os.close(out)
    done = len(results) == len(inputs) or (asked["stop"] and results and results[-1][0] != VALUE)
    if not done:
        spent_s = cpu_s - sum(one[2] for one in results)
        ended = EXITED, f"exit code {os.waitstatus_to_exitcode(status)} within a call", spent_s
        results.append(_problem(status, spent_s, math.inf) or ended)
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
    send, pack = _write, _HEAD.pack
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
    _limit(test_s)
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
        _limit(test_s)
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


def _limit(test_s: float) -> None:
    """Move the limit of processor time ahead by so much, plus the second that the kernel may overcount on a
    busy machine. The use of a test is measured at its end."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = math.ceil(time.process_time() + test_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard < 0 else min(soft, hard), hard))


def _ended(pid: int) -> tuple[int, float]:
    """Wait for a child: its status and processor seconds."""
    _pid, status, usage = os.wait4(pid, 0)
    return status, usage.ru_utime + usage.ru_stime


def _problem(status: int, cpu_s: float, test_s: float) -> Result | None:
    """Why a test has no output: too long, or a signal."""
    if cpu_s > test_s or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return TIMEOUT, "", cpu_s
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
        return EXITED, f"signal {number} ({name})", cpu_s
    return None


def _nameless(name: str) -> int:
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(name)
    return fd


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
