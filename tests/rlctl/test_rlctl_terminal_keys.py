"""Keys of live views: immediate effect; a closed terminal ends the view."""

import asyncio
import os
import pty
import sys

import pytest

from gleaner.rlctl.commands.terminal_keys import typed_keys


async def test_closed_terminal_counts_as_quit(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    keys: list[str] = []
    with os.fdopen(slave, "r") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        with typed_keys(keys.append):
            os.write(master, b"m")
            while not keys:
                await asyncio.sleep(0.01)
            os.close(master)
            while len(keys) < 2:
                await asyncio.sleep(0.01)
    assert keys[0] == "m"
    assert set(keys[1:]) == {"q"}
