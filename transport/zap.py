"""ZAP admission: which CURVE clients a listening socket admits.

Protocol: rfc.zeromq.org/spec/27. Owns the form of a routing id, and the one ZAP handler that libzmq allows
for a context. The listening sockets share it through their ZAP domains. Without a handler libzmq admits every
key, so a socket is admitted to its domain before it binds. `gate` works after the handshake.
"""

import asyncio
import itertools
import secrets
from collections.abc import Callable
from weakref import WeakKeyDictionary

import zmq
from zmq.utils import z85

from gleaner.transport.keys import NodeKeys
from gleaner.transport.port import Port, Sock

ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # fixed by the ZAP specification

OnStranger = Callable[[str, str], None]  # (address, the key that it presented)


class Authenticator:
    """Answers libzmq's admission requests of one context from the allow-list of each domain."""

    def __init__(self, context: zmq.Context[Sock]) -> None:
        self._domains: dict[bytes, tuple[Callable[[str], bool], OnStranger]] = {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        sock = context.socket(zmq.ROUTER)  # as REP, but a malformed request cannot wedge it
        sock.setsockopt(zmq.LINGER, 0)
        sock.bind(ZAP_ENDPOINT)
        self._port = Port(sock, self._on_request)

    @classmethod
    def shared(cls, context: zmq.Context[Sock]) -> "Authenticator":
        """The context's authenticator; it lives while any domain is admitted. Raises RuntimeError when it
        runs on another loop."""
        found = _of_context.get(context)
        if found is None:
            found = _of_context[context] = cls(context)
        elif found._loop is not asyncio.get_running_loop():
            raise RuntimeError("sockets with keys of one context must live on one event loop")
        return found

    def admit(self, admits: Callable[[str], bool], on_stranger: OnStranger) -> bytes:
        """Open a domain; `admits` is called for every connecting key, each time. Returns the domain's name;
        set it on the socket before binding."""
        domain = f"gleaner-{next(self._numbers)}".encode()
        self._domains[domain] = (admits, on_stranger)
        return domain

    def release(self, domain: bytes) -> None:
        """Close a domain. The last one takes the authenticator with it."""
        self._domains.pop(domain, None)
        if not self._domains:
            self._port.sock.unbind(ZAP_ENDPOINT)  # a close alone frees the name some time later
            self._port.close()
            for context, found in list(_of_context.items()):
                if found is self:
                    del _of_context[context]

    def _on_request(self, frames: list[bytes]) -> None:
        if len(frames) < 8:
            return  # not a ZAP request
        asker, empty, version, request_id, domain, address, _identity, mechanism, *credentials = frames
        admits, on_stranger = self._domains.get(domain, (_deny_all, _ignore))
        key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" and credentials else ""
        if key and admits(key):
            answer = [asker, empty, version, request_id, b"200", b"OK", key.encode(), b""]
        else:
            on_stranger(address.decode(errors="replace"), f"{mechanism.decode(errors='replace')} key {key}")
            answer = [asker, empty, version, request_id, b"400", b"unknown key", b"", b""]
        self._port.send(answer)


def _deny_all(_key: str) -> bool:
    return False


def _ignore(_address: str, _what: str) -> None:
    pass


# libzmq has one ZAP endpoint for a context, so what answers there is kept by context.
_of_context: WeakKeyDictionary[zmq.Context[Sock], Authenticator] = WeakKeyDictionary()


UNGUESSED_BYTES = 8  # of a routing id
ROUTING_MARK = b"gl1#"  # libzmq still takes any bytes for ZMTP 1.0 frames; none of those begin so


def owned_routing_id(name: str, keys: NodeKeys | None) -> bytes:
    """A routing id for a dialling socket: our mark, a name, an unguessable number, and with keys the owner's
    public key. A ROUTER gives the route to the last peer with an id, so a guessed id would divert a
    neighbour's answers."""
    owner = keys.public if keys is not None else ""
    return ROUTING_MARK + f"{name}.{secrets.token_hex(UNGUESSED_BYTES)}#{owner}".encode()
