"""Azure: Scheduled Events of the metadata service, mainly spot VM preemption.

Protocol: "Azure Metadata Service: Scheduled Events for Linux VMs", version 2020-07-01. Every request has the
header `Metadata: true` and names its api-version. The list has events of other VMs of the same group too:
`Resources` names the VMs of an event. An event that is over, or called off, is not in the list any more. A VM
that is ready approves its event by a StartRequest; Azure then need not wait until `NotBefore`.
"""

import re

import msgspec

from gleaner.nodeagent.notices.cloud import Channel, CloudName, PollFailed
from gleaner.nodeagent.notices.metadata import Metadata, Reply, utc_s
from gleaner.nodeagent.notices.policy import NOTHING, Finding

HEADERS = {"Metadata": "true"}
EVENTS = "/metadata/scheduledevents"
EVENTS_VERSION = {"api-version": "2020-07-01"}
NAME = "/metadata/instance/compute/name"
NAME_PARAMS = {"api-version": "2021-02-01", "format": "text"}
ANSWER_S = 15.0
FIRST_ANSWER_S = 150.0
"""The first request turns Scheduled Events on, and may take two minutes."""
POLL_S = 1.0  # a Preempt event appears 30 s before, and Azure recommends one look a second
ENDS = frozenset({"Preempt", "Terminate", "Reboot", "Redeploy"})
"""Events that end the processes of the VM; `Freeze` stops it for seconds, which Gleaner sits out."""
STANDING = frozenset({"Scheduled", "Started"})

_NAME = re.compile(r"[\w.-]{1,200}")


class _Event(msgspec.Struct, rename="pascal"):
    event_id: str
    event_type: str
    event_status: str
    resources: list[str] = []
    not_before: str = ""


class _Document(msgspec.Struct, rename="pascal"):
    events: list[_Event]


class _StartRequest(msgspec.Struct, rename="pascal"):
    event_id: str


class _StartRequests(msgspec.Struct, rename="pascal"):
    start_requests: list[_StartRequest]


class Azure:
    """See the module."""

    name: CloudName = "azure"

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._vm = ""
        self._answer_s = FIRST_ANSWER_S
        self.channels = (Channel("scheduled-events", self._look, POLL_S, POLL_S),)

    async def close(self) -> None:
        await self._metadata.close()

    async def vm(self, within_s: float = ANSWER_S) -> str:
        """The name of this VM, as events name it. Raises PollFailed."""
        if not self._vm:
            reply = await self._metadata.ask(
                "GET", NAME, headers=HEADERS, params=NAME_PARAMS, within_s=within_s
            )
            if reply.status != 200 or not _NAME.fullmatch(reply.text):
                raise PollFailed(f"{NAME}: status {reply.status}, {reply.text[:60]!r}")
            self._vm = reply.text
        return self._vm

    async def acknowledge(self, id: str) -> None:
        body = msgspec.json.encode(_StartRequests([_StartRequest(id)]))
        reply = await self._metadata.ask(
            "POST", EVENTS, headers=HEADERS, params=EVENTS_VERSION, body=body, within_s=ANSWER_S
        )
        if reply.status != 200:
            raise PollFailed(f"StartRequests: status {reply.status}")

    async def _look(self, at_once: bool) -> Finding:
        vm = await self.vm()
        reply = await self._metadata.ask(
            "GET", EVENTS, headers=HEADERS, params=EVENTS_VERSION, within_s=self._answer_s
        )
        if reply.status != 200:
            raise PollFailed(f"{EVENTS}: status {reply.status}")
        document = reply.decode(_Document)
        self._answer_s = ANSWER_S
        mine = [
            _finding(event, vm, reply)
            for event in document.events
            if event.event_type in ENDS and event.event_status in STANDING and _named(vm, event)
        ]
        return min(mine, key=lambda found: found.left_s, default=NOTHING)


def _named(vm: str, event: _Event) -> bool:
    return any(name.casefold() == vm.casefold() for name in event.resources)


def _finding(event: _Event, vm: str, reply: Reply) -> Finding:
    started = event.event_status == "Started" or not event.not_before
    left_s = 0.0 if started else max(0.0, utc_s(event.not_before) - reply.server_s)
    # An approval is for all VMs of the event: of the others this host knows nothing.
    alone = all(name.casefold() == vm.casefold() for name in event.resources)
    return Finding("notice", event.event_type, event.event_id[:200], left_s, acknowledges=alone)
