"""Signals by which a user ends a command: Ctrl-C, SIGTERM, a closed terminal."""

import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
