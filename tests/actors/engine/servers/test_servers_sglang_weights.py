"""Weights of an SGLang server, with a small server that loads as SGLang does.

The small server has our loader in it. `tests/engines` does the same with real ones.
"""

import base64
import importlib.util
import pickle
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer

from gleaner.actors.engine.servers import sglang_weights
from gleaner.actors.engine.servers.port import LoadFailed, ServerDied
from gleaner.actors.engine.servers.sglang import SglangWire
from gleaner.actors.engine.servers.sglang_weights import LOADER, PLUGIN
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.weights import Fetched
from gleaner.actors.weights.image.draft import FILE
from gleaner.actors.weights.image.store import ImageStore

SHAPES = {"a.weight": (3, 5), "b.weight": (7,)}
CONFIG = {"vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
CONFIG |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4}


def loader() -> ModuleType:
    """Our module as SGLang imports it."""
    spec = importlib.util.spec_from_file_location("gleaner_sglang", PLUGIN / "gleaner_sglang.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Model(torch.nn.Module):
    """Like a model of SGLang: reads a checkpoint's names and copies each tensor into its own."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_buffer(name.replace(".", "_"), torch.zeros(shape))

    def load_weights(self, weights: AsyncIterator[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:  # type: ignore[attr-defined]
            getattr(self, name.replace(".", "_")).copy_(tensor)


@dataclass
class FakeSglang:
    """`ranks` models that are loaded together; `session`: it has the routes of a session."""

    session: bool = True
    loaders: list[str] | None = field(default_factory=lambda: [LOADER])
    ranks: int = 1
    silent: bool = False
    made: dict[str, int] | None = None  # of its held requests; None: it has no hooks of ours
    version: str = "first"
    opened: bool = False
    paused: bool = False
    calls: list[str] = field(default_factory=list)
    models: list[Model] = field(default_factory=lambda: [Model(), Model()])

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path
        self.calls.append(path)
        if path == "/server_info":
            info = {"custom_weight_loader": self.loaders, "tp_size": self.ranks, "version": "0.5.23"}
            held = {"paused": self.paused, "made": self.made if self.paused else {}}
            info["internal_states"] = [{} if self.made is None else {"gleaner": held}]
            return web.json_response(info)
        if path == "/model_info":
            return web.json_response({"model_path": "/m", "weight_version": self.version})
        body = await request.json()
        if path.endswith("_generation"):
            self.paused = path.startswith("/pause")
        elif path.endswith("_weight_update"):
            if not self.session:
                return web.json_response({"detail": "Not Found"}, status=404)
            begins = path.startswith("/begin")
            if begins is self.opened:
                return web.json_response({"success": False, "message": "the other first"}, status=400)
            self.opened = begins
        elif path == "/update_weights_from_tensor":
            assert self.paused
            assert self.opened
            self._take(body)
        elif path == "/update_weights_from_disk":
            assert self.paused
            self.version = body["weight_version"]
        return web.json_response({"success": True, "message": ""})

    def _take(self, body: dict[str, object]) -> None:
        """Each rank in its own process, as far as file names distinguish them."""
        names = body["serialized_named_tensors"]
        assert isinstance(names, list)
        assert len(names) == self.ranks
        self.version = str(body["weight_version"])
        module = loader()
        for rank, name in enumerate(names):
            module.os = type("Os", (), {"getpid": lambda rank=rank: rank, "fstat": __import__("os").fstat})
            pairs = pickle.loads(base64.b64decode(name))
            if not self.silent:
                module.load_image(self.models[rank], [(text, tensor.to("cpu")) for text, tensor in pairs])


@pytest.fixture
def fake() -> FakeSglang:
    return FakeSglang()


@pytest.fixture
async def wire(fake: FakeSglang, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SglangWire]:
    async def tempered(wire: SglangWire) -> bool:
        return False

    monkeypatch.setattr(SglangWire, "_leaves_temperature_out", tempered)  # it serves no requests
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.answer)
    async with TestServer(app) as server:
        wire = SglangWire(str(server.make_url("")).rstrip("/"), None)
        yield wire
        await wire.disconnect()


def image(directory: Path, version: int) -> tuple[Fetched, dict[str, torch.Tensor]]:
    torch.manual_seed(version)
    tensors = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    specs, whole = [], bytearray()
    for name, tensor in tensors.items():
        data = tensor.numpy().tobytes()
        specs.append(TensorSpec(name, "float32", tuple(tensor.shape), len(whole), len(data)))
        whole += data
    with ImageStore(directory).create(version, len(whole), specs) as draft:
        draft.view[:] = whole
        path = draft.seal() / FILE
    return Fetched(version, b"abcd", str(path), tuple(specs), msgspec.json.encode(CONFIG), 0, 0.0), tensors


def holds(model: Model, tensors: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(getattr(model, name.replace(".", "_")), tensors[name]) for name in SHAPES)


async def flipped(wire: SglangWire, fetched: Fetched) -> str:
    await wire.stage(fetched)
    return await wire.commit()


async def test_each_rank_maps_the_image_while_paused(
    fake: FakeSglang, wire: SglangWire, tmp_path: Path
) -> None:
    fake.ranks = 2
    fetched, tensors = image(tmp_path, 3)
    assert await flipped(wire, fetched) == "v3-61626364" == fake.version
    assert fake.calls == [
        "/server_info",
        "/pause_generation",
        "/begin_weight_update",
        "/update_weights_from_tensor",
        "/end_weight_update",
        "/continue_generation",
        "/model_info",
        "/model_info",  # later health checks compare with this
    ]
    assert all(holds(model, tensors) for model in fake.models)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != Path(fetched.path)]


async def test_server_holds_requests_until_the_change_ends(
    fake: FakeSglang, wire: SglangWire, tmp_path: Path
) -> None:
    fake.made = {"r1": 7, "of-others": 3}
    await flipped(wire, image(tmp_path, 3)[0])
    assert wire.keeps
    fetched, tensors = image(tmp_path, 4)
    await wire.stage(fetched)
    fake.calls.clear()
    assert await wire.hold(["r1", "r2"]) == {"r1": 7}
    assert await wire.commit() == "v4-61626364"
    assert fake.paused
    await wire.go_on()
    assert fake.calls == [
        "/pause_generation",
        "/server_info",
        "/begin_weight_update",
        "/update_weights_from_tensor",
        "/end_weight_update",
        "/model_info",
        "/model_info",  # later health checks compare with this
        "/continue_generation",
    ]
    assert holds(fake.models[0], tensors)
    fake.calls.clear()
    await flipped(wire, image(tmp_path, 5)[0])
    assert fake.calls[0] == "/pause_generation", "the next change has its own pause again"


async def test_server_without_hooks_reports_that_nothing_is_held(
    fake: FakeSglang, wire: SglangWire, tmp_path: Path
) -> None:
    await flipped(wire, image(tmp_path, 3)[0])
    assert not wire.keeps


@pytest.mark.parametrize(("loaders", "session"), [(None, True), (["theirs.load"], True), ([LOADER], False)])
async def test_server_without_loader_or_session_reads_a_folder(
    fake: FakeSglang, wire: SglangWire, tmp_path: Path, loaders: list[str] | None, session: bool
) -> None:
    fake.loaders, fake.session = loaders, session
    for version in (3, 4):
        assert await flipped(wire, image(tmp_path, version)[0]) == fake.version == f"v{version}-61626364"
    assert fake.calls.count("/update_weights_from_disk") == 2
    assert fake.calls.count("/update_weights_from_tensor") == 0
    assert fake.calls.count("/begin_weight_update") == (loaders == [LOADER])
    assert not list(tmp_path.rglob("served-*/*/*.safetensors"))


async def test_session_left_open_is_closed_first(fake: FakeSglang, wire: SglangWire, tmp_path: Path) -> None:
    fake.opened = True
    fetched, tensors = image(tmp_path, 3)
    await flipped(wire, fetched)
    assert holds(fake.models[0], tensors)
    assert not fake.opened


@pytest.mark.parametrize("harm", ["gone", "cut off", "of another shape"])
async def test_failed_image_leaves_the_served_weights(
    fake: FakeSglang, wire: SglangWire, tmp_path: Path, harm: str
) -> None:
    before, tensors = image(tmp_path, 3)
    name = await flipped(wire, before)
    fetched, _ = image(tmp_path, 4)
    if harm == "gone":
        Path(fetched.path).unlink()
    elif harm == "cut off":
        with open(fetched.path, "r+b") as file:
            file.truncate(80)
    else:  # the tensors before it in the image are already copied
        short = msgspec.structs.replace(fetched.tensors[-1], shape=(6,), nbytes=24)
        fetched = msgspec.structs.replace(fetched, tensors=(*fetched.tensors[:-1], short))
    reason = (
        r"4 was not staged"
        if harm == "gone"
        else r"4 was not loaded: 1 of 1 ranks(.|\n)*version 3 was loaded"
    )
    with pytest.raises(LoadFailed, match=reason):
        await flipped(wire, fetched)
    assert fake.version == name
    assert holds(fake.models[0], tensors)
    assert not fake.paused
    again, tensors = image(tmp_path, 5)
    await flipped(wire, again)
    assert holds(fake.models[0], tensors)


async def test_server_without_a_way_back_is_given_up(
    fake: FakeSglang, wire: SglangWire, tmp_path: Path
) -> None:
    fetched, _ = image(tmp_path, 3)
    with open(fetched.path, "r+b") as file:
        file.truncate(80)
    with pytest.raises(ServerDied, match="no version to go back to"):
        await flipped(wire, fetched)


async def test_silent_rank_does_not_count_as_loaded(
    fake: FakeSglang, wire: SglangWire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_weights, "REPORT_S", 0.1)
    fake.silent = True
    with pytest.raises(ServerDied, match="0 of 1 ranks"):
        await flipped(wire, image(tmp_path, 3)[0])


async def test_folder_without_free_space_is_not_staged(
    fake: FakeSglang, wire: SglangWire, tmp_path: Path
) -> None:
    fake.loaders = None
    fetched, _ = image(tmp_path, 3)
    Path(fetched.path).unlink()
    with pytest.raises(LoadFailed, match="version 3 was not staged"):
        await wire.stage(fetched)
    assert "/pause_generation" not in fake.calls
