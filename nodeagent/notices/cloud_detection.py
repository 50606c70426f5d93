"""Detection of the cloud that this host is in, by one probe of each.

Each probe asks what only one cloud's metadata service answers; all run at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from gleaner.nodeagent.notices.aws import Aws
from gleaner.nodeagent.notices.azure import Azure
from gleaner.nodeagent.notices.cloud import Cloud, FindCloud, PollFailed, Source
from gleaner.nodeagent.notices.gcp import HEADERS, Gcp
from gleaner.nodeagent.notices.metadata import LINK_LOCAL, Metadata

PROBE_S = 2.0
"""Metadata services answer in milliseconds; elsewhere no service answers, and packets to that address may
vanish."""


def cloud_finder(source: Source, url: str = "") -> FindCloud | None:
    """The function that finds the cloud of `source`; None: there is none to find. `url`: of the metadata
    service, where it is not at the usual place."""
    base = url or LINK_LOCAL
    if source == "none":
        return None
    if source == "auto":
        return partial(_probe, base)
    kinds: dict[str, Callable[[Metadata], Cloud]] = {"aws": Aws, "gcp": Gcp, "azure": Azure}
    return partial(_named, kinds[source], base)


async def _named(kind: Callable[[Metadata], Cloud], base: str) -> Cloud:
    return kind(Metadata(base))


async def _probe(base: str) -> Cloud | None:
    metadata = Metadata(base)
    aws, gcp, azure = Aws(metadata), Gcp(metadata), Azure(metadata)
    tries: list[tuple[Cloud, Awaitable[object]]] = [
        (aws, aws.token(PROBE_S)),
        (gcp, _is_google(metadata)),
        (azure, azure.vm(PROBE_S)),
    ]
    answers = await asyncio.gather(*(answer for _, answer in tries), return_exceptions=True)
    for (cloud, _), answer in zip(tries, answers, strict=True):
        if not isinstance(answer, BaseException):
            return cloud
        if not isinstance(answer, PollFailed):
            raise answer
    await metadata.close()
    return None


async def _is_google(metadata: Metadata) -> None:
    reply = await metadata.ask("GET", "/computeMetadata/v1/instance/id", headers=HEADERS, within_s=PROBE_S)
    if reply.status != 200 or reply.headers.get("metadata-flavor") != "Google":
        raise PollFailed(f"status {reply.status}")
