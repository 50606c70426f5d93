"""The signals by which a user ends a command: Ctrl-C, SIGTERM, a terminal that was closed."""

import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
