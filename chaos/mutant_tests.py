"""Unit tests with a mutant: the first test of its package that notices it.

Owns the process of pytest, in a copy of the checkout that has the mutant in its file. A test notices a mutant
when it fails with it, fails again when it runs alone, and passes without it; a test that fails otherwise
proves nothing, and is left out. Time is processor time: a busy machine makes no mutant noticed.
"""

import functools
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from gleaner.chaos.hang_detector import HangDetector, Sample
from gleaner.chaos.mutant_checkout import changed_checkout
from gleaner.chaos.mutants import Mutant, NoMutant, edit_of
from gleaner.chaos.mutate import CannotPlant

CHECKOUT = Path(__file__).resolve().parent.parent
MUTANT, SOURCE = "GLEANER_MUTANT", "GLEANER_MUTANT_SOURCE"
"""Variables with the name of the mutant and the SHA-256 of its file, for tests/mutant_plugin.py."""
PLANTED = "mutant planted: "
"""The plug-in's line at the end of a run; a mutant survives only a run that has it."""
CANNOT_PLANT = 70
"""The plug-in's exit code where the mutant is not in the file that is imported."""
PASSED = 0  # of pytest
SUMMARY = " short test summary info "
MARKS = "not realprocess and not alone and not engines and not vllm and not verl and not long"
TESTS_S = 900.0
"""Processor seconds of the tests of one package, three times what the slowest takes."""
TEST_S = 150
"""Seconds of one test, ten times what the slowest takes; a mutant that hangs it is noticed."""
BLOCKED_S = 200.0
"""Seconds without any progress of any process of the tests; above TEST_S, whose report names the test."""
LOOK_S = 1.0
"""Between two polls of the tests. A poll counts as no more than this."""
MAX_UNSTEADY = 3
"""Tests of a package that may fail without a mutant, or not again with it, before that is an error."""


@dataclass(frozen=True, slots=True)
class SuiteEnd:
    """How a run of tests ended. failed: the first test that failed, "" where none did; why: the end where no
    test is to blame, "" where there is one, or all passed."""

    failed: str = ""
    why: str = ""

    @property
    def passed(self) -> bool:
        """All tests passed."""
        return not (self.failed or self.why)


def noticed_by_tests(mutant: Mutant) -> str:
    """The first test that notices it; "" for none. Raises RuntimeError where the tests cannot run."""
    folder, near = str(Path("tests", *mutant.package.split(".")[1:])), nearest(mutant)
    if near and (found := _first_proof(mutant.name, folder, near)):
        return found
    return _first_proof(mutant.name, folder, [folder, *(f"--ignore={path}" for path in near)])


def _first_proof(mutant: str, folder: str, wanted: Sequence[str]) -> str:
    """The first of these tests that notices it; "" for none."""
    unsteady: list[str] = []
    while len(unsteady) <= MAX_UNSTEADY:
        end = run_tests(mutant, [*wanted, *(f"--deselect={test}" for test in unsteady)])
        if end.passed:
            return ""
        if not end.failed:
            _require_clean(folder)
            return f"{folder}: {end.why}"
        if not run_tests(mutant, [end.failed]).passed and run_tests("", [end.failed]).passed:
            return end.failed
        unsteady.append(end.failed)
    raise RuntimeError(f"{mutant}: tests fail without it, or not again: {', '.join(unsteady)}")


def nearest(mutant: Mutant) -> list[str]:
    """Files and folders with the tests of the mutant's own module, by their names: they are run first, as
    they notice it soonest."""
    *packages, module = mutant.module.split(".")[1:]
    top, folder = Path("tests", *mutant.package.split(".")[1:]), Path("tests", *packages)
    if folder != top and (CHECKOUT / folder).is_dir():
        return [str(folder)]
    return [str(file.relative_to(CHECKOUT)) for file in sorted((CHECKOUT / top).glob(f"test_*_{module}.py"))]


@functools.cache
def _require_clean(folder: str) -> None:
    end = run_tests("", [folder])
    if not end.passed:
        raise RuntimeError(f"{folder}: fails without a mutant: {end.failed or end.why}")


def run_tests(mutant: str, arguments: Sequence[str]) -> SuiteEnd:
    """Run tests until the first failure, with the mutant of that name or without one (""). Raises
    RuntimeError where the mutant was not planted."""
    command = [
        sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--no-header", "-p", "tests.mutant_plugin",
        "-p", "no:cacheprovider", "-n", "0", "--timeout", str(TEST_S), "-m", MARKS, *arguments,
    ]  # fmt: skip
    try:
        digest = hashlib.sha256(edit_of(mutant).new.encode()).hexdigest() if mutant else ""
        copied = changed_checkout(CHECKOUT, mutant)
    except (NoMutant, CannotPlant) as problem:
        raise RuntimeError(f"{mutant}: not planted: {problem}") from problem
    with copied as checkout, tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=checkout,
            env={**os.environ, MUTANT: mutant, SOURCE: digest, "PYTHONPATH": str(checkout)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        hung = _until_done_or_hung(process)
        output.seek(0)
        text = output.read()
    if process.returncode == CANNOT_PLANT:
        raise RuntimeError(f"{mutant}: not planted: {text[-500:]}")
    return judged(mutant, process.returncode, hung, text)


def judged(mutant: str, code: int, hung: str, text: str) -> SuiteEnd:
    """The end of a run with that exit code and output. Raises RuntimeError for one that passed without the
    mutant, or in which no test ran."""
    failed = [  # lines before the summary may be of a captured log
        line.partition(" ")[2].partition(" - ")[0].strip()
        for line in text.partition(SUMMARY)[2].splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    if hung:
        return SuiteEnd(why=f"no end ({hung})")
    if failed:
        return SuiteEnd(failed=failed[0])
    if code == PASSED:
        if PLANTED + mutant not in text.splitlines():
            raise RuntimeError(f"{mutant or 'no mutant'}: the tests ran without the plug-in: {text[-500:]}")
        return SuiteEnd()
    if "ImportError while loading conftest" in text:
        return SuiteEnd(why="cannot be imported")
    if code in (1, 3) or code < 0:  # a failure without a test, an internal error, a signal
        return SuiteEnd(why=f"pytest ends with {code}")
    raise RuntimeError(f"{mutant or 'no mutant'}: pytest ended with {code}: {text[-500:]}")


def _until_done_or_hung(process: "subprocess.Popen[bytes]") -> str:
    """Wait for the end, and kill a hung process with all that it started. Why it is hung, "" otherwise."""
    detector = HangDetector(_sample(process.pid), processor_s=TESTS_S, blocked_s=BLOCKED_S)
    why = ""
    try:
        while process.poll() is None and not why:
            try:
                process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                why = detector.hung(_sample(process.pid), LOOK_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return why


def _sample(pid: int) -> Sample:
    """One poll of the tests' process and its descendants; an ended one waits for nothing."""
    used_s, waits = 0.0, False
    try:
        tree = [psutil.Process(pid)]
        tree += tree[0].children(recursive=True)
    except psutil.NoSuchProcess:
        return Sample(0.0, waits_for_machine=False)
    for process in tree:
        try:
            times, status = process.cpu_times(), process.status()
        except psutil.NoSuchProcess:
            continue
        used_s += times.user + times.system + times.children_user + times.children_system
        waits = waits or status in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
    return Sample(used_s, waits)
