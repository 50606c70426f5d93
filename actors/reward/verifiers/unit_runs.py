"""Runs of a problem's pytest files with the files of a response.

Inside the sandbox. This process runs nothing of the response. Each file of tests is run by a child. The files
of the problem are written anew before it, and its source is read before it imports the response. It reports
each test through a pipe, in lines that begin with a token which only that child and this process have.
"""

import contextlib
import json
import os
import select
import signal
import sys
import unittest.mock  # noqa: F401  # loaded before any response can replace it
from collections.abc import Callable
from typing import NoReturn

import pytest

MAX_TOLD_BYTES = 2**20
MAX_WORDS = 300
SLICE_MS = 50

Result = tuple[str, int, bool, list[tuple[str, str, str]]]
"""The report of a file: its path, the child's exit code (negative: a signal), whether a line was forged, and
for each test its name, outcome and text."""


def run(payload: bytes) -> bytes:
    """JSON of a `Result` for each file. payload: JSON with response, files (content by path) and tests (paths
    to run, which are among the files)."""
    asked = json.loads(payload)
    sys.dont_write_bytecode = True
    results: list[Result] = []
    for path, content in asked["response"].items():
        _place(path, content, 0o600)
    for path in asked["tests"]:
        for name, content in asked["files"].items():
            _place(name, content, 0o400)
        results.append(_file(path))
        with contextlib.suppress(OSError):
            os.kill(-1, signal.SIGKILL)  # descendants of the child; not this process, and none outside
    return json.dumps(results).encode("utf-8", "replace")


def _place(path: str, content: str, mode: int) -> None:
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(content)


def _file(path: str) -> Result:
    read, write = os.pipe()
    word = os.urandom(16).hex()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _be_runner(path, write, word)
    os.close(write)
    try:
        code, lines = _output_of(pid, read)
    finally:
        os.close(read)
    forged = False
    tests: list[tuple[str, str, str]] = []
    for line in lines:
        try:
            began, name, outcome, words = json.loads(line)
            forged |= began != word
            tests.append((str(name), str(outcome), str(words)[:MAX_WORDS]))
        except (ValueError, TypeError, RecursionError):
            forged = True
    return path, code, forged, tests


def _output_of(pid: int, read: int) -> tuple[int, list[bytes]]:
    """The child's exit code and its lines, up to a limit; other holders of the pipe are not waited for."""
    output = bytearray()
    poll = select.poll()
    poll.register(read, select.POLLIN)
    code: int | None = None
    while True:
        ready = poll.poll(SLICE_MS if code is None else 0)
        part = os.read(read, 2**16) if ready else b""
        output += part[: MAX_TOLD_BYTES - len(output)]
        if code is not None and not part:
            return code, bytes(output).splitlines()
        if code is None and not part:
            ended, status = os.waitpid(pid, 0 if ready else os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None


def _be_runner(path: str, write: int, word: str) -> NoReturn:
    code = 99
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        os.dup2(write, 3)
        os.closerange(4, 64)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        sys.path.insert(0, os.getcwd())
        words = [
            path,
            "-q",
            "-p",
            "no:cacheprovider",
            "--capture=no",
            "--rootdir",
            os.getcwd(),
            "-c",
            "pytest.ini",
        ]
        code = int(pytest.main(words, plugins=[_Reporter(_sender(word))]))
    finally:
        os._exit(code)


def _sender(word: str) -> Callable[[str, str, str], None]:
    write, dumps = os.write, json.dumps

    def send(name: str, outcome: str, words: str) -> None:
        write(3, (dumps([word, name, outcome, words[-MAX_WORDS:]]) + "\n").encode("utf-8", "replace"))

    return send


class _Reporter:
    """A plugin of pytest that sends the outcome of each test, and the reason of each collection error."""

    def __init__(self, send: Callable[[str, str, str], None]) -> None:
        self._send = send
        self._found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before = self._found.get(report.nodeid, "passed")
        now = before if before != "passed" else report.outcome
        self._found[report.nodeid] = now
        if report.when == "teardown":
            self._send(report.nodeid, now, "")
        elif report.outcome == "failed":
            self._send(report.nodeid, "why", _last_line(report.longrepr))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._send(report.nodeid, "not collected", _last_line(report.longrepr))


def _last_line(words: object) -> str:
    crash = getattr(words, "reprcrash", None)
    if crash is not None:
        return str(crash.message).strip().split("\n")[0]
    lines = [line for line in str(words).splitlines() if line.strip()]
    return lines[-1] if lines else ""
