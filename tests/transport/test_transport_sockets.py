"""Socket options against libzmq's reaction to a flooding peer that dies.

The process under test is busy meanwhile.
"""

import subprocess
import sys

import pytest

# libzmq aborts the whole process when a connection breaks whose input waits at the high-water mark and a
# heartbeat of its own is due (zeromq/libzmq#3596, #4364): hence a process of its own.
BUSY = """
import sys, time, zmq
from gleaner.transport.sockets import HEARTBEAT_IVL_MS, default_context, open_dealer, open_router
from gleaner.transport.wire import Peer

ours, theirs = default_context(), zmq.Context()
count = int(sys.argv[2])
if sys.argv[1] == "listener":
    busy = open_router(ours, "tcp://127.0.0.1:0", None, print)
    rude = theirs.socket(zmq.DEALER)
    rude.connect(busy.local.endpoint)
    send = rude.send
else:
    rude = theirs.socket(zmq.ROUTER)
    port = rude.bind_to_random_port("tcp://127.0.0.1")
    busy = open_dealer(ours, Peer(f"tcp://127.0.0.1:{port}"), b"busy", None)
    busy.connect(f"tcp://127.0.0.1:{port}")
    while True:
        try:
            busy.send(b"hello", zmq.NOBLOCK)
            break
        except zmq.Again:
            time.sleep(0.01)
    route, _hello = rude.recv_multipart()
    send = lambda data: rude.send_multipart([route, data])
rude.set(zmq.SNDTIMEO, 300)
try:
    for _ in range(count):
        send(bytes(1000))
except zmq.Again:
    pass
rude.close(linger=0)
theirs.term()
time.sleep(2.5 * HEARTBEAT_IVL_MS / 1000)
print("lives")
"""


@pytest.mark.realprocess
@pytest.mark.parametrize("busy", ["listener", "dialler"])
def test_busy_process_survives_a_flooding_peer_that_dies(busy: str) -> None:
    command = [sys.executable, "-c", BUSY, busy, "20000"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, "lives\n"), ran.stderr
