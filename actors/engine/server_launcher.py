"""Becomes a server that dies with whoever started it: `python -m actors.engine.server_launcher COMMAND ...`.

Owns nothing but the order: have the kernel end this process with its parent, then be the command. What was
asked of the kernel outlives exec; the server knows nothing of it. Source: prctl(2), PR_SET_PDEATHSIG.
"""

import os
import sys

from supervisor.process import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])
