"""Two hosts of a reward pipeline with real workers: the proxy's, and a reward host on another system."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from gleaner.actors.names import PLANNER, REWARD
from gleaner.actors.protocol.reward import RewardState, RewardStatus, ScoreText, Verdict
from gleaner.actors.reward.blobs import BlobFolder
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.host import RewardHost
from gleaner.actors.reward.planner import RewardPlanner
from gleaner.actors.reward.proxy import RewardProxy, text_worker
from gleaner.actors.reward.scoring import WorkerSpec
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.stage_pools import HostParts, StageLimits, StagePools
from gleaner.actors.reward.stages import Pipelines
from gleaner.actors.reward.worker_process import WorkerProcess
from gleaner.configs.load import from_tree
from gleaner.configs.schema import Config
from gleaner.supervisor.testing import TestSystem

HOST = "far/reward"
DOUBLES = Entry(question="?", tests=tuple({"input": f"{n}\n", "output": f"{2 * n}"} for n in range(2)))
HEAD = "#include <stdio.h>\n"
MAIN = 'int main(void) { int n; scanf("%d", &n); printf("%d\\n", 2 * n + ADD); return 0; }'
LARGE = "static const char zeros[200000] = {1}; const char *volatile kept = zeros;\n"
"""What makes a program too large to travel with its item."""


def source(add: int = 0, large: bool = False) -> str:
    """A program that doubles a number, and adds to it."""
    return HEAD + (LARGE if large else "") + MAIN.replace("ADD", str(add))


def settings(stages: dict[str, object], judge_url: str = "", planner: str = "static") -> Config:
    """Of a task in C, in stages; with a judge for what passes, if it has a URL."""
    task = {
        "name": "doubles",
        "data": "none.jsonl",
        "verifier": "code",
        "params": {"language": "c", "compile_s": 4.0, "deadline_s": 1.0},
        "judge": {"weight": 0.5 if judge_url else 0.0, "gate": 0.5 if judge_url else 0.0},
    }
    judge = {"url": judge_url, "model": "m", "rubric_text": "Right is 10.", "deadline_s": 8.0}
    reward = {
        "deadline_s": 8.0,
        "journal_above_s": 0.0,
        "stages": {"separate": True, **stages},
        "planner": {"kind": planner},
        **({"judge": judge} if judge_url else {}),
    }
    return from_tree({"task": [task], "reward": reward}, "test")


@dataclass
class Hosts:
    """The proxy's host and another one. `files`: where each has its blobs."""

    near: TestSystem
    far: TestSystem
    files: Path
    config: Config

    @property
    def spec(self) -> WorkerSpec:
        """Of a worker."""
        return text_worker(RewardSettings.of(self.config))

    def start_proxy(self) -> None:
        blobs, settings_ = partial(self._blobs, "near"), RewardSettings.of(self.config)
        self.near.spawn(
            REWARD,
            lambda: RewardProxy(
                settings_, "", WorkerProcess.start, self.spec, parts=HostParts(make_blobs=blobs)
            ),
        )

    def start_planner(self) -> None:
        planner = self.config.reward.planner
        self.near.spawn(PLANNER, lambda: RewardPlanner(planner.kind, planner.max_delay_s))

    def start_host(self) -> None:
        pipelines = Pipelines(self.config.task, self.config.reward)
        limits = StageLimits.of(self.config.reward, pipelines, pipelines.host_workers(1))
        blobs = partial(self._blobs, "far")
        self.far.spawn(
            HOST,
            lambda: RewardHost(
                StagePools(limits, self.spec, WorkerProcess.start, HostParts(make_blobs=blobs))
            ),
        )

    def _blobs(self, name: str) -> BlobFolder:
        return BlobFolder(self.files / name)

    def blobs(self, name: str) -> set[str]:
        """The blobs of a host."""
        return {path.name for path in (self.files / name).iterdir()}

    async def score(self, name: str, program: str) -> Verdict:
        """The verdict of a program."""
        ask = ScoreText(
            request=name,
            task="doubles",
            entry=msgspec.json.encode(DOUBLES),
            response=f"```c\n{program}\n```",
            batch="step-1",
        )
        return await self.near.ask(REWARD, ask, Verdict, deadline_s=60.0)

    async def state(self) -> RewardState:
        """Of the proxy."""
        return await self.near.ask(REWARD, RewardStatus(), RewardState, deadline_s=60.0)
