"""GCP: preemption of spot VMs and maintenance events, from the metadata server.

Protocol: Compute Engine, "About VM metadata" (`wait_for_change`, `last_etag`, `timeout_sec`; the header
`Metadata-Flavor: Google` in request and answer), "Spot VMs" (`instance/preempted`: TRUE once the VM is being
preempted, with at most 30 s to its end), "Query metadata server for maintenance event notices"
(`instance/maintenance-event`, 60 s before).
"""

from functools import partial

from gleaner.nodeagent.notices.cloud import Channel, CloudName, PollFailed
from gleaner.nodeagent.notices.metadata import Metadata
from gleaner.nodeagent.notices.policy import NOTHING, Finding

HEADERS = {"Metadata-Flavor": "Google"}
WAIT_S = 60.0
"""The server holds a request for so long while nothing changes."""
ANSWER_S = 10.0  # beyond that
PAUSE_S = 1.0  # between two requests, should the server not wait
PREEMPTED_S = 30.0
MAINTENANCE_S = 60.0
FINDINGS = {
    "preempted": {
        "FALSE": NOTHING,
        "TRUE": Finding("notice", "preempted", "preempted", PREEMPTED_S),
    },
    "maintenance-event": {
        "NONE": NOTHING,
        "MIGRATE_ON_HOST_MAINTENANCE": Finding("hint", "it will be moved to another machine"),
        "TERMINATE_ON_HOST_MAINTENANCE": Finding(
            "notice", "terminated for maintenance", "maintenance", MAINTENANCE_S
        ),
    },
}


class Gcp:
    """See the module. `wait_s`: how long a request may wait for news."""

    name: CloudName = "gcp"

    def __init__(self, metadata: Metadata, wait_s: float = WAIT_S) -> None:
        self._metadata = metadata
        self._wait_s = wait_s
        self._etags: dict[str, str] = {}
        self.channels = tuple(Channel(key, partial(self._look, key), PAUSE_S, PAUSE_S) for key in FINDINGS)

    async def acknowledge(self, id: str) -> None:
        """GCP does not ask for it."""

    async def close(self) -> None:
        await self._metadata.close()

    async def _look(self, key: str, at_once: bool) -> Finding:
        etag = "" if at_once else self._etags.get(key, "")
        self._etags.pop(key, None)  # after a failed look the value itself is read, without waiting
        params, within_s = None, ANSWER_S
        if etag:
            params = {"wait_for_change": "true", "last_etag": etag, "timeout_sec": f"{self._wait_s:.0f}"}
            within_s += self._wait_s
        path = f"/computeMetadata/v1/instance/{key}"
        reply = await self._metadata.ask("GET", path, headers=HEADERS, params=params, within_s=within_s)
        if reply.status != 200:
            raise PollFailed(f"{path}: status {reply.status}")
        if reply.headers.get("metadata-flavor") != "Google":
            raise PollFailed(f"{path}: the answer is not the metadata server's")
        found = FINDINGS[key].get(reply.text)
        if found is None:
            raise PollFailed(f"{path}: unknown value {reply.text[:60]!r}")
        if "etag" in reply.headers:
            self._etags[key] = reply.headers["etag"][:200]
        return found
