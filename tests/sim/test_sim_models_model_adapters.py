"""Fittings of a simulated host: the ports of production's actors, over the host's lives."""

from array import array
from pathlib import Path

import pytest

from gleaner.actors.engine.worker.port import StepCommands
from gleaner.actors.protocol.instances import Work
from gleaner.actors.protocol.weights import Fetched
from gleaner.actors.training.records import Eval
from gleaner.actors.training.sample import Sample
from gleaner.actors.weights.image.manifest import Manifest
from gleaner.configs.schema import Config, Engine, Rollout
from gleaner.nodeagent.adapters import AdapterFactory
from gleaner.sim.meter import Meter
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.job_model import JobModel
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.model_adapters import HostStores, ModelAdapterFactory, SimIdentity
from gleaner.sim.models.tokens import response
from gleaner.sim.models.weight_bytes import weights_of

STORE, STATE, CHECKPOINTS = Path("/shm/images"), Path("/shm/state"), Path("/disk/checkpoints")
GANG = Path("/shm/gang")
CONFIG = Config(rollout=Rollout(max_new_tokens=448), engine=Engine(slots=256, max_prompt_tokens=64))
PLANT = JobModel.named("qwen3-14b", LengthLaw(median=5400, sigma=0.8), token_scale=32, frame_rows=2)


def adapters(kept: HostStores, meter: Meter, host_devices: HostDevices | None = None) -> AdapterFactory:
    return ModelAdapterFactory(
        PLANT, host_devices or HostDevices("h100", 2, 2), kept, meter, SimIdentity("host-1", "test")
    )


def test_engine_serves_what_trainer_of_its_host_wrote() -> None:
    kept, meter = HostStores(), Meter()
    host = adapters(kept, meter)
    work = host.trainer_work(CONFIG, Path("/none"), STORE, STATE, GANG)
    work.load("")
    work.begin_step()
    work.add_micro_batch([Sample([1, 2], [3, 4], [-1.0, -1.0], 1.0)])
    work.finish_step()
    published = work.write_image(1)
    store = host.image_store(STORE)
    manifest = Manifest.build(1, store.content(1), published.tensors, chunk_bytes=65_536)
    assert len(manifest.chunks) == PLANT.image_bytes // 65_536 == 111
    fetched = Fetched(
        version=1,
        root=manifest.root,
        path=store.place(1),
        tensors=published.tensors,
        model_config=published.model_config,
        pulled_bytes=0,
        seconds=0.0,
    )
    engine = adapters(kept, meter).engine_host(CONFIG, "preemptible")
    turn = engine.turn(StepCommands(load=fetched))
    assert (turn.version, turn.root) == (1, manifest.root)
    one = Work(
        ticket=1,
        prompt=array("I", [5] * 8).tobytes(),
        prefix=b"",
        seed=77,
        max_new_tokens=448,
        temperature=1.0,
    )
    output = engine.turn(StepCommands(adds=[(1, [one])])).output
    assert output is not None
    assert output.tokens.tolist() == response(77, 2, PLANT.shape.vocabulary).tolist()


def test_turn_of_a_large_model_takes_its_decode_time() -> None:
    engine = PLANT.engine(CONFIG, HostDevices("h100", 2, 2))
    assert engine.limits.cache_tokens > 600_000
    assert engine.max_tokens == 512
    per_token_s = engine.cost.decode(1, 8 * 32)
    assert 0.008 < per_token_s < 0.02
    assert PLANT.wire_scale * PLANT.image_bytes == pytest.approx(PLANT.shape.weight_bytes)


def test_histories_and_checkpoints_outlive_the_host_unlike_images() -> None:
    kept, meter = HostStores(), Meter()
    first = adapters(kept, meter)
    work = first.trainer_work(CONFIG, Path("/none"), STORE, STATE, GANG)
    work.write_image(0)
    first.history(Path("/run/h")).write(Eval(t_s=3.0, step=0, when="first", reward=0.0, problems=1))
    kept.memory.clear()
    again = adapters(HostStores({}, kept.durable, kept.histories), Meter())
    assert again.history(Path("/run/h")).last_t_s == 3.0
    assert again.image_store(STORE).versions() == []
    assert again.host_copies(STATE).newest() is None
    assert again.checkpoints(CHECKPOINTS, 2).latest().checkpoint is None


def test_first_weights_follow_seed_and_inventory_follows_rig() -> None:
    kept = HostStores()
    host = adapters(kept, Meter(), HostDevices("h200", 8, 4))
    host.trainer_work(CONFIG, Path("/a"), STORE, STATE, GANG).write_image(0)
    other = HostStores()
    adapters(other, Meter()).trainer_work(CONFIG, Path("/b"), STORE, STATE, GANG).write_image(0)
    assert weights_of(host.image_store(STORE).content(0)) == weights_of(next(iter(other.memory.values())))
    assert host.inventory().gpus == ("NVIDIA H200 SXM 141 GB",) * 8
