"""The filter of system calls, run by an interpreter of its instructions; the numbers are the kernel's."""

import errno
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from gleaner.actors.reward.sandbox import seccomp
from gleaner.actors.reward.sandbox.syscall_numbers import ARCHITECTURES, NEWEST, NUMBERS

HEADERS = {
    "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), []),
    "aarch64": (
        Path("/usr/include/asm-generic/unistd.h"),
        ["-D__BITS_PER_LONG=64", "-D__ARCH_WANT_MEMFD_SECRET"],
    ),
}
DENY, ABSENT = seccomp.ERRNO | errno.EPERM, seccomp.ERRNO | errno.ENOSYS


def verdict(machine: str, number: int, *arguments: int, arch: int = 0, own_pid: int = 0) -> int:
    """Verdict of the filter on a call, as the kernel would run it."""
    data = struct.pack("=IIQ6Q", number, arch or ARCHITECTURES[machine], 0, *(*arguments, *[0] * 6)[:6])
    program = list(struct.iter_unpack("=HBBI", seccomp.filter_bytes(machine, own_pid)))
    accumulator = at = 0
    while True:
        code, yes, no, value = program[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x06:
            return value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[
                code
            ]
            at += yes if holds else no


@pytest.mark.parametrize("machine", NUMBERS)
def test_forbidden_calls_are_denied_and_others_allowed(machine: str) -> None:
    number = NUMBERS[machine]
    denied = {number[name] for names in seccomp.DENIED.values() for name in names if name in number}
    assert all(verdict(machine, one) == DENY for one in denied)
    assert verdict(machine, number["clone3"]) == ABSENT
    assert verdict(machine, NEWEST + 1) == ABSENT
    others = set(range(NEWEST + 1)) - denied - {number[name] for name in ("clone3", "socketpair", "ioctl")}
    assert all(verdict(machine, number[name], 77) == DENY for name in seccomp.OF_ANY_PROCESS)
    assert all(verdict(machine, one) == seccomp.ALLOW for one in others)
    assert verdict(machine, 1, arch=0x40000003) == seccomp.KILL_PROCESS, "calls of 32 bits"


def test_x32_calls_end_the_program() -> None:
    assert verdict("x86_64", seccomp.X32_BIT + 39) == seccomp.KILL_PROCESS


@pytest.mark.parametrize("machine", NUMBERS)
def test_arguments_decide_for_partly_needed_calls(machine: str) -> None:
    number = NUMBERS[machine]
    assert verdict(machine, number["clone"], 0x11) == seccomp.ALLOW
    assert verdict(machine, number["clone"], 0x10000011) == DENY, "a user namespace"
    assert verdict(machine, number["ioctl"], 0, 0x5401) == seccomp.ALLOW
    assert verdict(machine, number["ioctl"], 0, 0x5412) == DENY, "TIOCSTI"
    assert verdict(machine, number["ioctl"], 0, 0x40086602) == DENY, "FS_IOC_SETFLAGS"
    assert verdict(machine, number["ioctl"], 0, 0x5412 | 1 << 40) == DENY, "the kernel looks at 32 bits"
    assert verdict(machine, number["socketpair"], 1) == seccomp.ALLOW
    assert verdict(machine, number["socketpair"], 2) == DENY
    assert verdict(machine, number["prctl"], 22) == DENY
    assert verdict(machine, number["prctl"], 15) == seccomp.ALLOW


@pytest.mark.parametrize("machine", NUMBERS)
def test_program_may_signal_only_itself_without_namespaces(machine: str) -> None:
    for name in seccomp.SIGNALS:
        number = NUMBERS[machine][name]
        assert verdict(machine, number, 77, own_pid=77) == seccomp.ALLOW
        for other in (1, 78, 0, 2**32 - 1):
            assert verdict(machine, number, other, own_pid=77) == DENY
        assert verdict(machine, number, 78) == seccomp.ALLOW


@pytest.mark.parametrize("machine", NUMBERS)
def test_call_numbers_match_the_kernel_headers(machine: str) -> None:
    header, options = HEADERS[machine]
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not header.exists():
        pytest.skip(f"no C compiler, or no {header}")
    words = [compiler, "-E", "-dM", *options, str(header)]
    defined = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    theirs = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", defined)}
    found = {name: number for name, number in NUMBERS[machine].items() if theirs.get(name, number) != number}
    assert found == {}
    assert len(theirs.keys() & NUMBERS[machine].keys()) > 90
