"""Forwarder: carries the packets of one bad link between two hosts.

`python -m gleaner.chaos.real.forwarder`, one process for each link. Owns two TUN devices, one in each host;
packets from one leave the other, after `packets` changed them. The kernel here has no netem. When this
process ends, for any reason, the devices and the routes over them go with it, and the hosts use their cables
again; connections survive. Ends when its input does; its last line has the counts, as JSON.
"""

import argparse
import ctypes
import fcntl
import json
import os
import select
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from gleaner.chaos.real.packets import Quality, Wire

UP = "up"
MAX_PACKET_BYTES = 65_536
READS = 64  # packets taken from a device before those that are due are looked for
LONGEST_S = 1.0  # between looks for the end of the input
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000


def tun(pid: int, name: str) -> int:
    """A TUN device in the network namespace of a process; its file descriptor. Raises OSError.

    This process is in that namespace afterwards.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(space, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), f"network namespace of process {pid}")
    finally:
        os.close(space)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def carry(there: int, back: int, wires: tuple[Wire, Wire], report_fd: int) -> None:
    """Carry packets until the input `told` ends."""
    devices = (there, back)
    while True:
        now_s = time.monotonic()
        times = [wire.next_s() for wire in wires]
        due_s = min((at_s for at_s in times if at_s is not None), default=now_s + LONGEST_S)
        ready, _, _ = select.select([*devices, report_fd], [], [], min(max(due_s - now_s, 0.0), LONGEST_S))
        if report_fd in ready and not os.read(report_fd, 64):
            return
        now_s = time.monotonic()
        for device, wire in zip(devices, wires, strict=True):
            if device in ready:
                _take(device, wire, now_s)
        for device, wire in zip(reversed(devices), wires, strict=True):
            for packet in wire.due(now_s):
                _give(device, packet)


def _take(device: int, wire: Wire, now_s: float) -> None:
    for _ in range(READS):
        try:
            packet = os.read(device, MAX_PACKET_BYTES)
        except OSError:  # no more packets, or the device is not up (yet)
            return
        if packet[0] >> 4 == 4:  # the hosts have no IPv6 addresses; the kernel asks for some all the same
            wire.put(packet, now_s)


def _give(device: int, packet: bytes) -> None:
    try:
        os.write(device, packet)
    except OSError:  # it is not up, or its queue is full: the packet is lost, as on a network
        return


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="gleaner.chaos.real.forwarder", description="Carries the packets of a bad link."
    )
    parser.add_argument(
        "--between", type=int, nargs=2, required=True, metavar="PID", help="pids of the keepers"
    )
    parser.add_argument("--device", required=True, help="name of the device in both hosts")
    parser.add_argument("--seed", required=True)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--duplicate", type=float, default=0.0)
    parser.add_argument("--delay", type=float, default=0.0, metavar="S")
    parser.add_argument("--jitter", type=float, default=0.0, metavar="S")
    parser.add_argument("--flips", type=int, default=0, help="bit flips in the direction to the second host")
    args = parser.parse_args(argv)
    try:
        one, other = (tun(pid, args.device) for pid in args.between)
    except OSError as problem:
        sys.exit(f"{problem.filename or 'a TUN device'}: {problem.strerror}")
    there = Quality(args.loss, args.duplicate, args.delay, args.jitter, args.flips)
    back = Quality(args.loss, args.duplicate, args.delay, args.jitter)
    wires = (Wire(there, f"{args.seed}/there"), Wire(back, f"{args.seed}/back"))
    print(UP, flush=True)
    carry(one, other, wires, sys.stdin.fileno())
    total = {key: sum(asdict(wire.counts)[key] for wire in wires) for key in asdict(wires[0].counts)}
    print(json.dumps(total), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
