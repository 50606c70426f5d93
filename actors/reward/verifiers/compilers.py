"""`Compiler`: a command that makes a program of a source, by language or by the settings' own words.

Owns the known languages and the search for a compiler on this machine. Does not run it on responses
(`compiled_programs`).
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gleaner.actors.reward.sandbox import shells

SOURCE, OUTPUT = "{source}", "{output}"
"""Places in the words of a command for the names of its files."""
SANDBOX_PATH = "/usr/local/bin:/usr/bin:/bin"
SYSROOT_S = 20.0


class NoCompiler(LookupError):
    """A compiler is not on this machine; the text gives the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """A language that needs no words of a user. fences: words behind the fence of a block. trial: a source
    that every working compiler of it accepts. remedy: how to get the compiler."""

    compile: tuple[str, ...]
    source: str
    fences: tuple[str, ...]
    trial: str
    remedy: str


LANGUAGES: dict[str, Language] = {
    "c": Language(
        compile=("gcc", "-O2", "-std=c17", "-o", OUTPUT, SOURCE, "-lm"),
        source="main.c",
        fences=("c",),
        trial="int main(void) { return 0; }\n",
        remedy="apt install gcc libc6-dev",
    ),
    "c++": Language(
        compile=("g++", "-O2", "-std=c++17", "-o", OUTPUT, SOURCE),
        source="main.cpp",
        fences=("c++", "cpp", "cxx", "cc"),
        trial="#include <cstdio>\nint main() { return 0; }\n",
        remedy="apt install g++",
    ),
    "rust": Language(
        # the linker that newer toolchains bring starts through /proc, which is hidden from programs
        compile=("rustc", "-O", "--edition=2021", "-C", "link-arg=-fuse-ld=bfd", "-o", OUTPUT, SOURCE),
        source="main.rs",
        fences=("rust", "rs"),
        trial="fn main() {}\n",
        remedy="apt install rustc, or rustup.rs",
    ),
    "cuda": Language(
        compile=("nvcc", "-O2", "-o", OUTPUT, SOURCE),
        source="main.cu",
        fences=("cuda", "cu", "c++", "cpp"),
        trial="int main() { return 0; }\n",
        remedy="install NVIDIA's CUDA toolkit",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """A compiler of this machine. command: its words, the first one an absolute path. environment: in
    addition to a program's. readable: folders that it reads beside the system's."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    readable: tuple[str, ...] = ()


def found(command: Sequence[str], reads: Sequence[str] = (), remedy: str = "") -> Compiler:
    """The compiler that a command names. reads: folders that it may read beside the system's. Raises
    `NoCompiler`."""
    name = command[0]
    path = shutil.which(name, path=f"{SANDBOX_PATH}:{os.environ.get('PATH', '')}")
    if path is None:
        raise NoCompiler(f"{name} is not installed here; {remedy or 'install it, or name another command'}")
    if Path(name).name == "rustc":
        return _rust(path, command[1:], reads)
    real = Path(path).resolve()
    if not any(real.is_relative_to(Path(place).resolve()) for place in shells.readable(reads)):
        raise NoCompiler(
            f"{real} is in none of the folders that programs can read; name those that it needs in `reads`"
        )
    return Compiler(command=(path, *command[1:]), readable=tuple(reads))


def version(language: str) -> str:
    """The first line that the compiler of a known language prints about itself. Raises `NoCompiler`."""
    known = LANGUAGES[language]
    path = found(known.compile, remedy=known.remedy).command[0]
    lines = _output([path, "--version"]).splitlines()
    numbered = [line.strip() for line in lines if any(map(str.isdigit, line)) and "(c)" not in line]
    released = [line for line in numbered if "release" in line]  # nvcc's comes behind other lines
    return next(iter([*released, *numbered]), path)


def words(command: Sequence[str], source: str, output: str) -> list[str]:
    """A command with the names of its files."""
    return [word.replace(SOURCE, source).replace(OUTPUT, output) for word in command]


def _rust(path: str, arguments: Sequence[str], reads: Sequence[str]) -> Compiler:
    """rustup's `rustc` starts that of a toolchain in a home; it needs its folder, and finds its libraries
    through /proc, which is hidden from programs."""
    root = _output([path, "--print", "sysroot"]).strip()
    if not root or not os.access(f"{root}/bin/rustc", os.X_OK):
        raise NoCompiler(f"{path} has no toolchain here; run `rustup default stable`")
    return Compiler(
        command=(f"{root}/bin/rustc", *arguments),
        environment={"LD_LIBRARY_PATH": f"{root}/lib"},
        readable=(*reads, root),
    )


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SYSROOT_S, check=False)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout
