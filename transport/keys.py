"""NodeKeys: CURVE key pair of a node and the keys that it trusts.

Owns `NodeKeys`, its directory (`node.public`, `node.secret` readable by the owner alone, `trusted/*.public`;
each file is one line of z85), and the rules for listening beyond loopback: not without keys, and not
unencrypted unless that was chosen. `zap` and `gate` check the keys of connecting peers.
"""

import hashlib
import ipaddress
import os
import re
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import zmq
from zmq.utils import z85

from gleaner.transport.allow_list import AllowList

Bulk = Literal["loopback", "clear"]
"""Allowed networks of unencrypted bulk content: inside this host, or also the network of its address."""

FINGERPRINT_CHARS = 12
TRUSTED = "trusted"  # folder of the keys that a node admits
MAX_FILE_BYTES = 4096  # read of a key file; a key has 40
MAX_TRUSTED = 10_000  # keys of one node, ten for each peer that a process can dial
Z85_KEY_CHARS = 40
_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


class BadKeys(Exception):
    """A key directory cannot be used; the message names the file and the remedy."""


class RefusedToListen(Exception):
    """An address would be open to a network without keys, or cannot be reached by others."""


@dataclass(frozen=True, slots=True)
class NodeKeys:
    """A node's key pair and the public keys that it admits besides its own (all z85, 40 characters).

    `trusted` is the list as it was read; `allowed` is the list in force, against which all sockets check
    keys: the trusted ones and this node's own key, for its other processes.
    """

    public: str
    secret: str = field(repr=False)
    trusted: frozenset[str] = frozenset()
    allowed: AllowList = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "allowed", AllowList(self.trusted | {self.public}))

    @classmethod
    def generate(cls) -> "NodeKeys":
        """A new key pair with an empty trust list. Its public key may appear on a command line."""
        while (pair := zmq.curve_keypair())[0].startswith(b"-"):
            pass  # it would be taken for an option; one key in 85
        return cls(pair[0].decode(), pair[1].decode())

    @classmethod
    def load(cls, directory: Path | str) -> "NodeKeys":
        """Read a key directory. Raises `BadKeys`."""
        root = Path(directory)
        secret_path = root / "node.secret"
        public, secret = read_key(root / "node.public"), read_key(secret_path)
        mode = stat.S_IMODE(secret_path.stat().st_mode)
        if mode & 0o077:
            raise BadKeys(f"{secret_path}: mode {mode:04o} lets others read it: chmod 600 {secret_path}")
        if zmq.curve_public(secret.encode()).decode() != public:
            raise BadKeys(f"{root}: node.public does not belong to node.secret: make a new pair")
        return cls(public, secret, frozenset(read_trusted(root).values()))

    def save(self, directory: Path | str) -> None:
        """Write the key directory. An existing secret is never overwritten (`BadKeys`)."""
        root = Path(directory)
        (root / TRUSTED).mkdir(parents=True, exist_ok=True)
        secret_path = root / "node.secret"
        try:
            fd = os.open(secret_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise BadKeys(f"{secret_path} exists: move it away if a new identity is wanted") from None
        with os.fdopen(fd, "w") as file:
            file.write(self.secret + "\n")
        (root / "node.public").write_text(self.public + "\n")
        for key in self.trusted:
            (root / TRUSTED / f"{fingerprint(key)}.public").write_text(key + "\n")


def fingerprint(key: str) -> str:
    """A short name of a public key, for people and files: the first digits of its SHA-256."""
    return hashlib.sha256(key.encode()).hexdigest()[:FINGERPRINT_CHARS]


def is_key(text: str) -> bool:
    """Whether the text is a key. Five characters of z85 can encode a number that does not fit in four bytes;
    such a text is not a key."""
    if _Z85.fullmatch(text) is None:
        return False
    try:
        z85.decode(text)
    except struct.error:
        return False
    return True


def read_trusted(root: Path) -> dict[str, str]:
    """The trusted keys of a key directory by the names of their files; none without the folder. Raises
    `BadKeys`."""
    files = sorted((root / TRUSTED).glob("*.public"))
    if len(files) > MAX_TRUSTED:
        raise BadKeys(f"{root / TRUSTED} holds {len(files)} keys, the limit is {MAX_TRUSTED}: revoke some")
    return {path.stem: read_key(path) for path in files}


def require_keys_beyond_loopback(bind: str, keys: NodeKeys | None) -> None:
    """Allow `bind` ("tcp://host:port") to be listened on. Raises `RefusedToListen` for any address that is
    not loopback while there are no keys, and for wildcards: they give other processes no address to dial."""
    host = _host(bind)
    if host in ("*", "0.0.0.0", "::"):
        raise RefusedToListen(
            f"{bind}: a wildcard names no interface; give the address under which others reach it"
        )
    if keys is None and not is_loopback(bind):
        raise RefusedToListen(
            f"{bind} is open to a network and there are no keys: make some with `rlctl keygen` and give "
            "their directory, or listen on 127.0.0.1"
        )


def require_clear_beyond_loopback(bind: str, bulk: Bulk) -> None:
    """Allow content to be sent unencrypted from `bind`. Raises `RefusedToListen` beyond loopback unless that
    was chosen."""
    if bulk == "loopback" and not is_loopback(bind):
        raise RefusedToListen(
            f"{bind}: weights would leave this host unencrypted (requests are signed and chunks hashed, but "
            "readable on that network): if the network is trusted, start with `nodeagent start --bulk "
            'clear`, or set network.bulk = "clear" for `rlctl run`; else listen on 127.0.0.1'
        )


def is_loopback(endpoint: str) -> bool:
    """Whether only this host can reach the endpoint. A host name other than localhost counts as not."""
    host = _host(endpoint)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_and_port(endpoint: str) -> tuple[str, int]:
    """The two halves of a bound endpoint, as the kernel names them."""
    return _host(endpoint), int(endpoint.rpartition(":")[2])


def _host(endpoint: str) -> str:
    match = re.fullmatch(r"tcp://(\[[^\]]+\]|[^:/]+):(\d{1,5}|\*)", endpoint)
    if match is None:
        raise RefusedToListen(f"{endpoint!r} is no address of the form tcp://host:port")
    return match[1].strip("[]")


def read_key(path: Path) -> str:
    """The key in a file. Raises `BadKeys`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe of that name must not stop the process
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise BadKeys(f"{path} cannot be read: it is no file")
            text = os.read(fd, MAX_FILE_BYTES).decode().strip()
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise BadKeys(f"{path} is missing: make keys with `rlctl keygen`") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadKeys(f"{path} cannot be read: {error}") from None
    if not is_key(text):
        raise BadKeys(f"{path} holds no key (one line of {Z85_KEY_CHARS} z85 characters): copy it again")
    return text
