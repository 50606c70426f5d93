"""The relay bench: figures of its waves, and network cards that keep their rate."""

import os
import subprocess
import sys

import pytest

from bench.weights.cards import INSIDE, why_not
from bench.weights.relay import IMAGE_BYTES, Wave, medians, page, rows
from bench.weights.relay_picture import picture


def waves() -> list[Wave]:
    """Three rounds; the star takes as many times as long as it has receivers."""
    return [
        Wave(mode, receivers, killed, seconds * late, IMAGE_BYTES * (receivers if mode == "star" else 1))
        for late in (1.0, 9.0, 1.1)
        for receivers, killed in ((1, False), (4, False), (4, True))
        for mode, seconds in (("star", float(receivers)), ("relay", 1.0))
    ]


def test_case_compares_median_relay_with_star_and_single() -> None:
    found = medians(waves())
    assert rows(found) == [
        ("1", "1.10", "1.10", "1.00", "1.00", "1.00", "1.00"),
        ("4", "1.10", "4.40", "1.00", "4.00", "1.00", "4.00"),
        ("4, of which one is killed", "1.10", "4.40", "1.00", "4.00", "1.00", "4.00"),
    ]
    assert "| 4 | 1.10 | 4.40 |" in page(found, 3, "then")
    drawn = picture([(one.receivers, one.mode, one.killed, one.seconds) for one in found])
    assert drawn.startswith("<svg")


SEND = """
import socket, threading, time
from bench.weights.cards import limit, sent_bytes
limit(["127.0.0.2", "127.0.0.3"], 4e6)
listening = socket.create_server(("127.0.0.2", 0))
def serve():
    with listening.accept()[0] as one:
        one.sendall(bytes(2_000_000))
threading.Thread(target=serve).start()
began = time.perf_counter()
with socket.create_connection(listening.getsockname()) as one:
    while one.recv(1 << 16):
        pass
assert time.perf_counter() - began > 0.3, "2 MB at 4 MB/s"
first, other = sent_bytes(["127.0.0.2", "127.0.0.3"])
assert 2_000_000 <= first < 2_200_000 and other < 10_000, (first, other)
"""


def test_network_card_sends_its_rate_and_counts_it() -> None:
    if why := why_not():
        pytest.skip(why)
    command = ["unshare", "--net", sys.executable, "-c", SEND]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, INSIDE: "1"}
    )
    assert done.returncode == 0, done.stderr
