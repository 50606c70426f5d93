"""The reward tier of a measurement: a proxy and a reward host with one worker each.

They are actor systems of one process, connected as two processes are; the workers are real.
"""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gleaner.actors.names import REWARD
from gleaner.actors.reward.host import RewardHost
from gleaner.actors.reward.pool import pool_limits
from gleaner.actors.reward.proxy import RewardProxy, text_worker
from gleaner.actors.reward.scoring import WorkerSpec
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.stage_pools import StageLimits, StagePools
from gleaner.actors.reward.stages import SCORE
from gleaner.actors.reward.worker_process import WorkerProcess
from gleaner.configs.schema import Config
from gleaner.supervisor.testing import TestSystem

HOST = "far/reward"


def worker_of(config: Config) -> WorkerSpec:
    """A worker that scores texts for the tasks of these settings."""
    return text_worker(RewardSettings.of(config))


@asynccontextmanager
async def tier(config: Config) -> AsyncIterator[TestSystem]:
    """The system of the proxy, as long as both run."""
    spec = worker_of(config)
    limits = StageLimits(workers={SCORE: 1}, pool=pool_limits(config.reward), verdict_s=60.0)
    with tempfile.TemporaryDirectory() as folder:
        async with TestSystem(Path(folder)) as near, TestSystem(Path(folder), node="far", join=near) as far:
            near.spawn(REWARD, lambda: RewardProxy(RewardSettings.of(config), "", WorkerProcess.start, spec))
            far.spawn(HOST, lambda: RewardHost(StagePools(limits, spec, WorkerProcess.start)))
            yield near
