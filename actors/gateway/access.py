"""Access: which callers may use a route, by keys, or by `Host` and `Origin`.

A browser sends requests for any page that is open in it, to loopback as well. If no key is needed, a page of
another site could use the engines; its `Origin` differs from `Host`. It could also use a name of its own that
resolves to this host (DNS rebinding); then `Host` is a foreign name. Pure.
"""

import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

Kind = Literal["open", "data", "control", "change"]
"""Kind of a route. open: needs no key, reveals only that the gateway lives; data: makes tokens; change:
changes engines, weights or requests; control: reads them, and everything else."""

ANY_HOST = "*"
LOCAL = "localhost"


class Denied(Exception):
    """The caller has no access. `status`: 400, 401 or 403; `field`: the header that is wrong, or ""."""

    def __init__(self, status: int, text: str, field: str = "") -> None:
        super().__init__(text)
        self.status, self.field = status, field


@dataclass(frozen=True, slots=True)
class Access:
    """keys: a caller needs one of them; empty: no key is needed. control_keys: a caller needs one of them for
    routes that change state, and any of them opens all other routes too; empty: `keys` open those routes.
    hosts: names of this gateway beside its addresses and localhost, for calls that need no key; "*": any
    name. server: the word for it in refusals."""

    keys: Sequence[str] = ()
    control_keys: Sequence[str] = ()
    hosts: Sequence[str] = ()
    server: str = "gateway"

    def check(self, headers: Mapping[str, str], kind: Kind) -> None:
        """Raises Denied for a caller without access."""
        for name, value in headers.items():
            if not _is_text(name) or not _is_text(value):
                shown = name.encode(errors="replace").decode()
                raise Denied(400, "expected UTF-8 text, got other bytes", shown)
        if kind == "open":
            return
        needed = self.control_keys if kind == "change" and self.control_keys else self.keys
        if needed:
            self._check_key(headers, needed)
        else:
            self._check_page(headers)

    def _check_key(self, headers: Mapping[str, str], needed: Sequence[str]) -> None:
        shown = _shown(headers)
        if _among(shown, needed) or _among(shown, self.control_keys):
            return
        if _among(shown, self.keys):
            raise Denied(403, "this route changes the gateway: it needs a control key (gateway.control_keys)")
        raise Denied(401, f"this {self.server} needs an API key: Authorization: Bearer KEY")

    def _check_page(self, headers: Mapping[str, str]) -> None:
        host = headers.get("Host")
        if host is None:
            return  # HTTP/1.0, which no browser uses
        if ANY_HOST not in self.hosts and not self._is_own(_hostname(host)):
            raise Denied(
                403,
                f"{host!r} is no known name of this {self.server}, which asks for no key: use its address, "
                "add the name to gateway.hosts, or set gateway.api_keys",
                "Host",
            )
        origin = headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise Denied(
                403,
                f"a page of {origin!r} may not use a {self.server} that asks for no key; set "
                "gateway.api_keys",
                "Origin",
            )

    def _is_own(self, name: str) -> bool:
        if name == LOCAL or name in (one.lower() for one in self.hosts):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # no name, so nothing that a foreign name server could have answered


OPEN = Access()
"""No key is needed."""


def _is_text(text: str) -> bool:
    """Whether the text was valid UTF-8: other bytes arrive as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _hostname(host: str) -> str:
    """The host of a `Host` header, in lower case, without the port; "" if it is invalid."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _shown(headers: Mapping[str, str]) -> bytes:
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    return (given if scheme.lower() == "bearer" else headers.get("X-API-Key", "")).strip().encode()


def _among(shown: bytes, keys: Sequence[str]) -> bool:
    """Whether a key is in the list; each comparison takes the same time, whatever the key."""
    return any([hmac.compare_digest(shown, key.encode()) for key in keys])
