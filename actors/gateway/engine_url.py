"""URL of an engine, as a client or a command line gives it. Pure."""

import ipaddress
import re
from urllib.parse import urlsplit

from gleaner.actors.gateway.fleet import FleetError

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
MAX_NAME = 253


class BadUrl(FleetError):
    """No server can ever answer at this URL."""


def origin(url: str) -> str:
    """The URL without path: "http://host:port". Raises BadUrl if it is invalid."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname or "", parts.port
    except ValueError as problem:
        raise BadUrl(f"{url!r}: {problem}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise BadUrl(f"{url!r}: expected a URL like http://10.0.0.5:30000")
    if parts.username is not None:
        raise BadUrl(f"{url!r}: expected no user name and no password; give the server's key as api_key")
    if port == 0:
        raise BadUrl(f"{url!r}: expected a port from 1 to 65535")
    if not _is_host(host):
        raise BadUrl(f"{url!r}: {host!r} is no host name and no address")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port is not None else "")


def _is_host(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        try:
            name = host.encode("idna").decode()
        except UnicodeError:
            return False
        labels = name.removesuffix(".").split(".")
        digits = labels[-1].isdigit()  # an invalid IPv4 address
        return len(name) <= MAX_NAME and not digits and all(map(_LABEL.fullmatch, labels))
    return True
