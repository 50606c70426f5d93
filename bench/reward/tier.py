"""The reward tier of a measurement: a proxy and a reward host with one worker of each stage.

They are actor systems of one process, connected as two processes are; the workers are real.
"""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gleaner.actors.names import REWARD
from gleaner.actors.reward.host import RewardHost
from gleaner.actors.reward.proxy import RewardProxy, text_worker
from gleaner.actors.reward.scoring import WorkerSpec
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.stage_pools import StageLimits, StagePools
from gleaner.actors.reward.stages import Pipelines
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
    pipelines = Pipelines(config.task, config.reward)
    limits = StageLimits.of(config.reward, pipelines, pipelines.workers())
    with tempfile.TemporaryDirectory() as folder:
        async with TestSystem(Path(folder)) as near, TestSystem(Path(folder), node="far", join=near) as far:
            near.spawn(REWARD, lambda: RewardProxy(RewardSettings.of(config), "", WorkerProcess.start, spec))
            far.spawn(HOST, lambda: RewardHost(StagePools(limits, spec, WorkerProcess.start)))
            yield near
