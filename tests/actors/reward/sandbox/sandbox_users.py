"""Commands as another user: root, or one without any right, on a machine whose interpreter only root may
reach."""

import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NOBODY = 65534
USERS = ("root", "nobody") if os.geteuid() == 0 else ("own",)
"""Users that this process can become."""

# The interpreter is in a folder of root. The script binds it to the same path in its own mount namespace,
# below folders that every user may search.
_SCRIPT = """
set -e
base=$1 hidden=$2; shift 2
if [ -n "$hidden" ]; then
  scratch=$(mktemp -d); mount --bind "$base" "$scratch"
  mount -t tmpfs -o mode=755 tmpfs "$hidden"; mkdir -p "$base"; mount --move "$scratch" "$base"
fi
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
"""


def command(user: str, words: Sequence[str]) -> list[str]:
    """`words` as `user`; mounts of root end with the command."""
    if user == "own":
        return list(words)
    if user == "root":
        return ["unshare", "--mount", "--propagation", "private", *words]
    return ["unshare", "--mount", "bash", "-c", _SCRIPT, "bash", sys.base_prefix, _hidden(), *words]


def _hidden() -> str:
    for folder in reversed(Path(sys.base_prefix).parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return str(folder)
    return ""


def run(user: str, words: Sequence[str], text: str, **environment: str) -> str:
    """Output of a command. Raises CalledProcessError."""
    done = subprocess.run(
        command(user, words),
        input=text,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
        env={**os.environ, **environment},
        cwd="/",
    )
    return done.stdout
