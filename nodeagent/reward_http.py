"""RewardHttp: HTTP server of a reward service, made of settings and keys.

Reads the file of keys and the environment once, when the server is made.
"""

import asyncio
import os
import time
import uuid
from dataclasses import replace
from functools import partial

from gleaner.actors.gateway.gateway import HttpEntry
from gleaner.actors.gateway.server import Guard, WebServer, guarded
from gleaner.actors.reward.verifiers import code_runs
from gleaner.actors.reward_service.asking import KnownTasks, Scoring
from gleaner.actors.reward_service.refusals import REFUSED, refusal
from gleaner.actors.reward_service.routes import ROUTES, ServiceContext
from gleaner.actors.reward_service.service import MakeEntry
from gleaner.configs.schema import Gateway as Settings
from gleaner.nodeagent.gateway_http import GatewayHttp, access_of, address_of, require_keys


def server_of(settings: Settings, tasks: KnownTasks) -> MakeEntry:
    """Makes the server at `gateway.listen`.

    The server, when it is made, raises ConfigError for an invalid address or file of keys, and
    RefusedToListen.
    """

    def make(scoring: Scoring) -> HttpEntry:
        host, port = address_of(settings.listen)
        access = replace(access_of(settings, os.environ), server="reward service")
        require_keys(settings, access, "have programs run and scored")
        desk = ServiceContext(
            scoring,
            tasks,
            settings,
            spawn=asyncio.ensure_future,
            wall_s=time.time,
            new_id=lambda: uuid.uuid4().hex,
            missing=code_runs.missing,
        )
        handlers = [(partial(route.does, desk), route) for route in ROUTES]
        front = Guard(settings, access, desk.figures, refusal, REFUSED)
        return RewardHttp(WebServer(guarded(handlers, front)), host, port, desk)

    return make


class RewardHttp(GatewayHttp):
    """See `HttpEntry`. Its end cancels submitted tasks."""

    def __init__(self, server: WebServer, host: str, port: int, desk: ServiceContext) -> None:
        super().__init__(server, host, port)
        self._desk = desk

    async def close(self) -> None:
        """See `HttpEntry`."""
        self._desk.results.close()
        await super().close()
