"""AWS: interruption notices and rebalance recommendations of spot instances.

Source: the metadata service. Protocol: EC2 user guide, "Spot Instance interruption notices", "EC2 instance
rebalance recommendations" and "Use the Instance Metadata Service" (version 2). A session token is fetched by
PUT and sent with each request; 401 means that it is not valid any more, 404 that there is no notice. The
guide asks for a look at both every 5 s.
"""

import asyncio
import re

import msgspec

from gleaner.nodeagent.notices.cloud import Channel, CloudName, PollFailed
from gleaner.nodeagent.notices.metadata import Metadata, Reply, utc_s
from gleaner.nodeagent.notices.policy import NOTHING, Finding

TOKEN_TTL_S = 21_600
"""Life of a token: the longest possible, six hours."""
ANSWER_S = 5.0
POLL_S = 5.0
NEAR_S = 2.0
NOTICE_S = 120.0
"""No notice is longer."""
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")


class _InstanceAction(msgspec.Struct):
    action: str
    time: str


class _Rebalance(msgspec.Struct, rename={"notice_time": "noticeTime"}):
    notice_time: str


class Aws:
    """See the module."""

    name: CloudName = "aws"

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._token = ""
        self._renew_at_s = 0.0
        self._renewing = asyncio.Lock()
        self.channels = (
            Channel("instance-action", self._instance_action, POLL_S, NEAR_S),
            Channel("rebalance", self._rebalance, POLL_S, POLL_S),
        )

    async def acknowledge(self, id: str) -> None:
        """EC2 does not ask for it."""

    async def close(self) -> None:
        await self._metadata.close()

    async def token(self, within_s: float = ANSWER_S) -> str:
        """A session token that is valid for a while. Raises PollFailed."""
        async with self._renewing:
            now_s = asyncio.get_running_loop().time()
            if not self._token or now_s >= self._renew_at_s:
                header = "X-aws-ec2-metadata-token-ttl-seconds"
                reply = await self._metadata.ask(
                    "PUT", "/latest/api/token", headers={header: str(TOKEN_TTL_S)}, within_s=within_s
                )
                if reply.status != 200 or not _TOKEN.fullmatch(reply.text):
                    raise PollFailed(f"no token: status {reply.status}")
                ttl = reply.headers.get(header.lower(), "")
                ttl_s = min(TOKEN_TTL_S, int(ttl)) if ttl.isdecimal() else TOKEN_TTL_S
                self._token, self._renew_at_s = reply.text, now_s + max(ttl_s / 2, ttl_s - 60.0)
            return self._token

    async def _instance_action(self, at_once: bool) -> Finding:
        reply = await self._get("/latest/meta-data/spot/instance-action")
        if reply is None:
            return NOTHING
        action = reply.decode(_InstanceAction)
        left_s = min(NOTICE_S, utc_s(action.time) - reply.server_s)
        if action.action == "hibernate":  # begins with the notice
            left_s = min(0.0, left_s)
        return Finding(
            "notice", f"{action.action[:20]} at {action.time}", f"{action.action} {action.time}", left_s
        )

    async def _rebalance(self, at_once: bool) -> Finding:
        reply = await self._get("/latest/meta-data/events/recommendations/rebalance")
        if reply is None:
            return NOTHING
        when = reply.decode(_Rebalance).notice_time
        utc_s(when)
        return Finding("hint", f"rebalance recommended at {when}", when)

    async def _get(self, path: str) -> Reply | None:
        """None where there is no notice."""
        for last in (False, True):
            headers = {"X-aws-ec2-metadata-token": await self.token()}
            reply = await self._metadata.ask("GET", path, headers=headers, within_s=ANSWER_S)
            if reply.status == 200:
                return reply
            if reply.status == 404:
                return None
            if reply.status != 401 or last:
                break
            self._token = ""  # it is not valid any more
        raise PollFailed(f"{path}: status {reply.status}")
