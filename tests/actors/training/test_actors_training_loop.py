"""The training loop in one process: controller, trainer, state manager and rollout over real data sockets."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from gleaner.actors.cluster.checkpoint_store import CheckpointStore
from gleaner.actors.cluster.host_copy import HostCopies
from gleaner.actors.cluster.state_manager import Rewound, StateManager
from gleaner.actors.engine.builtin.host import BuiltinHost
from gleaner.actors.engine.builtin.settings import BuiltinSettings
from gleaner.actors.engine.worker.settings import WorkerSettings
from gleaner.actors.engine.worker.worker import RolloutWorker
from gleaner.actors.model.checkpoint import load_checkpoint
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.model.qwen3_config import Qwen3Config
from gleaner.actors.protocol.cluster import (
    HostsUp,
    JobEnded,
    JobSpec,
    LatestState,
    NodeSeen,
    Plan,
    PlanNext,
    RestartSeen,
    StateIs,
    StepTrained,
    WhoIsUp,
)
from gleaner.actors.protocol.reward import GetProblems, Problems, Score, Verdict
from gleaner.actors.protocol.rollout import SubmitBatch
from gleaner.actors.protocol.training import TrainerIs, TrainerStatus
from gleaner.actors.protocol.weights import Publish, Published
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.actors.rollout.state.events import RequestsDue
from gleaner.actors.training.controller import RLController, _TakeSample
from gleaner.actors.training.history import Eval, HistoryWriter, Node, Run, Step, read_history
from gleaner.actors.training.settings import ComputeSettings, TrainerSettings
from gleaner.actors.training.trainer import Trainer
from gleaner.actors.training.trainer_files import TrainerFiles
from gleaner.actors.weights.agent import TransferAgent
from gleaner.actors.weights.image.store import ImageStore
from gleaner.actors.weights.settings import TransferSettings
from gleaner.configs.load import dump, from_tree
from gleaner.configs.schema import Config
from gleaner.supervisor import Actor, Done, handles
from gleaner.supervisor.testing import TEST_LIMITS, TestSystem

STEPS = 4
SIZES = {
    "model_type": "qwen3",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
}


class EvenReward(Actor):
    """Rewards even tokens; needs no worker process."""

    @handles(GetProblems)
    async def problems(self, message: GetProblems) -> Problems:
        return Problems(prompts=[[2 + index % 50, 5] for index in message.indices])

    @handles(Score)
    async def score(self, message: Score) -> Verdict:
        tokens = memoryview(message.tokens).cast("I")
        return Verdict(
            request=message.request, score=sum(t % 2 == 0 for t in tokens) / max(1, len(tokens)), status="ok"
        )


class OnePlan(Actor):
    """A scheduler that always returns the same plan and records the end of the job."""

    def __init__(self, t_seed_s: float) -> None:
        self.t_seed_s = t_seed_s
        self.ended: list[JobEnded] = []

    @handles(PlanNext)
    async def plan(self, message: PlanNext) -> Plan:
        return Plan(t_seed_s=self.t_seed_s, n_prem=1)

    @handles(WhoIsUp)
    async def list_hosts(self, message: WhoIsUp) -> HostsUp:
        return HostsUp(boot=1, roles={"r": "reserved"})

    @handles(JobEnded)
    async def end(self, message: JobEnded) -> Done:
        self.ended.append(message)
        return Done()


class SwampedPlan(OnePlan):
    """A scheduler whose mailbox is full from its third plan until `free` is set."""

    def __init__(self, t_seed_s: float) -> None:
        super().__init__(t_seed_s)
        self.plans = 0
        self.free = asyncio.Event()

    @handles(PlanNext)
    async def plan(self, message: PlanNext) -> Plan:
        self.plans += 1
        for _ in range(TEST_LIMITS.mailbox if self.plans == 3 else 0):
            await self.ctx.tell(self.ctx.address, WhoIsUp())
        return await super().plan(message)

    @handles(WhoIsUp)
    async def list_hosts(self, message: WhoIsUp) -> HostsUp:
        if self.plans >= 3 and not self.free.is_set():
            await self.ctx.tell(self.ctx.address, WhoIsUp())  # in place of this message
            await self.free.wait()
        return await super().list_hosts(message)


class HastyManager(RolloutManager):
    """A manager that expires the second step's requests before any of them has a token."""

    @handles(SubmitBatch)
    async def submit(self, message: SubmitBatch) -> Done:
        done = await super().submit(message)
        batch = self._state.log.batches[message.batch.batch]
        if batch.name == "step-2":
            due = RequestsDue(requests=tuple(log.id for log in batch.requests()))
            self._act(await self._journaled.record(due))
        return done


@dataclass
class Loop:
    head: TestSystem
    reserved: TestSystem
    config: Config
    directory: Path
    scheduler: OnePlan

    def start_state(self) -> None:
        directory = self.directory
        self.reserved.spawn(
            "training/state",
            lambda: StateManager(
                HostCopies(directory / "copies"),
                CheckpointStore(directory / "checkpoints", keep=self.config.training.checkpoint_keep),
            ),
        )

    async def until_durable(self, step: int) -> None:
        async with asyncio.timeout(60):
            while (await self.head.ask("training/state", LatestState(), StateIs)).durable_step < step:
                await asyncio.sleep(0.02)

    async def trained(self) -> list[StepTrained | Rewound]:
        _, events = await self.reserved.system._journals.read("training/state")
        return [event for _, event in events if isinstance(event, StepTrained | Rewound)]

    def start_trainer(self) -> None:
        node, directory = "r", self.directory
        self.reserved.spawn(
            "r/engine",
            lambda: RolloutWorker(
                WorkerSettings.of(self.config), node, "reserved", BuiltinHost(BuiltinSettings.of(self.config))
            ),
        )
        self.reserved.spawn(
            "training/trainer",
            lambda: Trainer(
                TrainerSettings.of(self.config),
                node,
                TrainerFiles(
                    ComputeSettings.of(self.config),
                    directory / "model",
                    directory / "store",
                    directory / "copies",
                ),
            ),
        )

    def kill_trainer(self) -> None:
        for name in ("training/trainer", "r/engine"):
            self.reserved.kill(name)

    def start_controller(self) -> None:
        job = JobSpec(run_id="test", run_dir="", model_dir="", config=dump(self.config))
        path = self.directory / "history.jsonl"
        self.head.spawn("training/controller", lambda: RLController(job, self.config, HistoryWriter(path)))

    async def until_ended(self) -> JobEnded:
        async with asyncio.timeout(60):
            while not self.scheduler.ended:
                await asyncio.sleep(0.02)
        return self.scheduler.ended[0]

    def steps(self) -> list[Step]:
        return [r for r in read_history(self.directory / "history.jsonl") if isinstance(r, Step)]

    async def until_step(self, step: int) -> None:
        async with asyncio.timeout(60):
            while not (self.directory / "history.jsonl").exists() or len(self.steps()) < step:
                await asyncio.sleep(0.02)


class SlowPublish(TransferAgent):
    """Publishes an image so slowly that requests for it arrive meanwhile."""

    @handles(Publish)
    async def publish(self, message: Publish) -> Published:
        await asyncio.sleep(0.3)
        return await super().publish(message)


@asynccontextmanager
async def loop(
    directory: Path,
    t_seed_s: float = 0.2,
    preemptible: bool = True,
    transfer: type[TransferAgent] = TransferAgent,
    exact: bool = False,
    staleness: int = 0,
    eval_every: int = 0,
    plans: type[OnePlan] = OnePlan,
    manager: type[RolloutManager] = RolloutManager,
) -> AsyncIterator[Loop]:
    model_dir = directory / "model"
    model_dir.mkdir(parents=True)
    (model_dir / "config.json").write_text(json.dumps(SIZES))
    torch.manual_seed(0)
    from safetensors.torch import save_file

    save_file(Qwen3(Qwen3Config.load(model_dir)).state_dict(), model_dir / "model.safetensors")
    config = from_tree(
        {
            "job": {"steps": STEPS, "exact": exact, "eval_every": eval_every},
            "engine": {"slots": 8},
            "task": {"heldout_problems": 8},
            "rollout": {"max_new_tokens": 24, "prompts": 4, "samples": 4, "staleness": staleness},
            "training": {"micro_batch_groups": 2},
        },
        "test",
    )
    scheduler = plans(t_seed_s)
    async with (
        TestSystem(directory, node="head") as head,
        TestSystem(directory, node="r", join=head) as reserved,
        TestSystem(directory, node="s", join=head) as spot,
    ):
        reserved.spawn(
            "r/transfer", lambda: transfer(ImageStore(directory / "store"), TransferSettings.of(config))
        )
        if preemptible:
            spot.spawn(
                "s/transfer",
                lambda: TransferAgent(ImageStore(directory / "spot-store"), TransferSettings.of(config)),
            )
            spot.spawn(
                "s/engine",
                lambda: RolloutWorker(
                    WorkerSettings.of(config), "s", "preemptible", BuiltinHost(BuiltinSettings.of(config))
                ),
            )
        head.spawn("reward/proxy", EvenReward)
        head.spawn("cluster/scheduler", lambda: scheduler)
        head.spawn("rollout/balancer", lambda: LoadBalancer(4))
        head.spawn("rollout/manager", lambda: manager(ManagerSettings.of(config)))
        running = Loop(head, reserved, config, directory, scheduler)
        running.start_state()
        running.start_trainer()
        running.start_controller()
        yield running


async def assert_whole(running: Loop) -> None:
    assert (await running.until_ended()).ok
    assert [step.step for step in running.steps()] == list(range(1, STEPS + 1))
    evals = [r for r in read_history(running.directory / "history.jsonl") if isinstance(r, Eval)]
    every = running.config.job.eval_every
    between = [step for step in range(1, STEPS) if every and step % every == 0]
    assert [(record.when, record.step) for record in evals] == [
        ("first", 0),
        *(("during", step) for step in between),
        ("last", STEPS),
    ]
    state = await running.head.ask("training/state", LatestState(), StateIs)
    assert state.durable_step == STEPS
    load_checkpoint(running.directory / "checkpoints" / f"step-{STEPS:06d}")


async def test_job_runs_to_its_end_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    async with loop(tmp_path) as running:
        await assert_whole(running)
        assert all(step.samples == 16 for step in running.steps())


async def test_job_without_preemptible_instances_runs_colocated(tmp_path: Path) -> None:
    async with loop(tmp_path, t_seed_s=0.0, preemptible=False) as running:
        await assert_whole(running)


@pytest.mark.parametrize("preemptible", [True, False])
async def test_no_trained_token_exceeds_the_staleness_bound(tmp_path: Path, preemptible: bool) -> None:
    async with loop(tmp_path, staleness=2, preemptible=preemptible) as running:
        await assert_whole(running)
        steps = running.steps()
        assert max(step.staleness_max for step in steps) in (1, 2), "batches were rolled out ahead"
        assert all(step.staleness_mean <= step.staleness_max <= 2 for step in steps)
        assert steps[0].staleness_max == 0


@pytest.mark.parametrize("staleness", [0, 2])
async def test_evaluation_happens_once_per_step_across_deaths(tmp_path: Path, staleness: int) -> None:
    async with loop(tmp_path, eval_every=1, staleness=staleness) as running:
        await running.until_step(2)
        running.head.kill("training/controller")
        running.kill_trainer()
        running.start_controller()
        running.start_trainer()
        await assert_whole(running)


async def test_trainer_reports_each_version_with_its_own_root(tmp_path: Path) -> None:
    async with loop(tmp_path, transfer=SlowPublish) as running:
        roots_of: dict[int, set[bytes]] = {}
        while not running.scheduler.ended:
            now = await running.head.ask("training/trainer", TrainerStatus(), TrainerIs, deadline_s=60.0)
            roots_of.setdefault(now.step, set()).add(now.root)
            await asyncio.sleep(0.02)
        await assert_whole(running)
        assert {step: len(roots) for step, roots in roots_of.items()} == dict.fromkeys(range(STEPS + 1), 1)


async def test_trainer_killed_in_a_step_does_it_once(tmp_path: Path) -> None:
    async with loop(tmp_path) as running:
        await running.until_step(1)
        running.kill_trainer()
        await asyncio.sleep(0.1)
        running.start_trainer()
        await assert_whole(running)


async def test_step_of_empty_responses_is_done_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with loop(tmp_path, manager=HastyManager) as running:
        await running.until_step(2)
        running.kill_trainer()
        running.start_trainer()
        await assert_whole(running)
        assert [step.tokens > 0 for step in running.steps()] == [True, False, True, True]
        assert running.steps()[1].samples == 16
        trained = [event.step for event in await running.trained() if isinstance(event, StepTrained)]
        assert trained == list(range(1, STEPS + 1))
    lines = [
        record.getMessage() for record in caplog.records if "no token to train on" in record.getMessage()
    ]
    assert len(lines) == 1
    assert lines[0].startswith("step 2 ")


async def test_step_lost_with_its_host_repeats_the_same_bits(tmp_path: Path) -> None:
    async with loop(tmp_path) as running:
        await running.until_step(2)
        await running.until_durable(2)
        running.kill_trainer()
        running.reserved.kill("training/state")
        shutil.rmtree(tmp_path / "copies")
        async with asyncio.timeout(60.0):  # a thread outlives its actor, and may be writing one
            while list((tmp_path / "checkpoints").glob("*.unfinished")):
                await asyncio.sleep(0.01)
        shutil.rmtree(max((tmp_path / "checkpoints").iterdir()))  # as if the newest never reached the disk
        running.start_state()
        running.start_trainer()
        await assert_whole(running)
        record = await running.trained()
        assert any(isinstance(event, Rewound) for event in record)
        roots: dict[int, set[bytes]] = {}
        trained: dict[int, set[tuple[tuple[int, ...], ...]]] = {}
        for event in record:
            if isinstance(event, StepTrained):
                roots.setdefault(event.step, set()).add(event.root)
                trained.setdefault(event.step, set()).add(event.micro_batches)
        done = [event.step for event in record if isinstance(event, StepTrained)]
        assert len(done) > STEPS, "a step was done again"
        assert all(len(found) == 1 for found in roots.values()), "and gave the same weights"
        # Also where each group is trained twice the weights are the same: gradients are divided by tokens.
        assert all(len(found) == 1 for found in trained.values()), "from each group once, in the same order"


async def test_controller_killed_in_a_step_resumes_the_run(tmp_path: Path) -> None:
    async with loop(tmp_path) as running:
        await running.until_step(2)
        running.head.kill("training/controller")
        running.start_controller()
        await assert_whole(running)
        records = read_history(running.directory / "history.jsonl")
        assert sum(isinstance(record, Run) for record in records) == 1, "the run was not resumed"
        assert sum(isinstance(record, Node) and record.event == "joined" for record in records) == 1


async def test_job_waits_for_an_overloaded_scheduler(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warned() -> bool:
        return any(
            record.name == "training/controller" and "messages wait" in record.getMessage()
            for record in caplog.records
        )

    async with loop(tmp_path, plans=SwampedPlan) as running:
        scheduler = running.scheduler
        assert isinstance(scheduler, SwampedPlan)
        async with asyncio.timeout(60):
            while not warned():
                assert not scheduler.ended, scheduler.ended
                await asyncio.sleep(0.02)
        scheduler.free.set()
        await assert_whole(running)


async def test_history_gets_no_record_after_the_job_end(tmp_path: Path) -> None:
    async with loop(tmp_path) as running:
        assert (await running.until_ended()).ok
        history = tmp_path / "history.jsonl"
        before = history.read_bytes()
        late = (
            NodeSeen(node="late", role="preemptible", event="joined"),
            RestartSeen(actor="late", cause="SIGKILL", incarnation=2),
            _TakeSample(),
        )
        for message in late:
            await running.head.ask("training/controller", message, Done)
        running.head.kill("training/controller")
        running.start_controller()
        for message in late:
            await running.head.ask("training/controller", message, Done)
        assert history.read_bytes() == before
        assert len(running.scheduler.ended) == 2, "the controller's next life reported the end again"


async def test_exact_job_gives_the_same_weights_when_disturbed(tmp_path: Path) -> None:
    roots: list[dict[int, bytes]] = []
    for disturbed in (False, True):
        async with loop(tmp_path / str(disturbed), t_seed_s=0.05 * disturbed, exact=True) as running:
            for step in range(1, STEPS) if disturbed else ():
                await running.until_step(step)
                await asyncio.sleep(0.02 * step)
                running.kill_trainer()
                running.start_trainer()
            await assert_whole(running)
            record = await running.trained()
            for event in record:
                assert isinstance(event, StepTrained)
                assert event.micro_batches == ((0, 1), (2, 3))
            roots.append({event.step: event.root for event in record if isinstance(event, StepTrained)})
    calm, harried = roots
    assert calm == harried
    assert len(set(calm.values())) == STEPS
