"""The wire of SGLang without SGLang: requests, answers, folders, processes."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from aiohttp import web
from driven_host import DrivenHost
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from gleaner.actors.engine.images.checkpoint_folder import ServedFolder
from gleaner.actors.engine.servers.factory import Spread, server_host, sglang_command, sglang_host
from gleaner.actors.engine.servers.port import Ask, Chunk, ServerDied, ServerRefused
from gleaner.actors.engine.servers.server_process import (
    FIRST_PORT,
    MAX_LOG_BYTES,
    PORTS,
    ServerProcess,
    free_port,
)
from gleaner.actors.engine.servers.sglang import capacity_of, sampling_params
from gleaner.actors.engine.servers.sglang_events import meta_of, new_of, newest_rows
from gleaner.actors.engine.servers.sglang_messages import FinishReason, Meta, ServerInfo
from gleaner.actors.engine.servers.sglang_scores import ScoreReading
from gleaner.actors.engine.worker.port import StepCommands
from gleaner.actors.model.checkpoint import load_checkpoint
from gleaner.actors.model.flat_image import image_bytes, weight_layout, write_weights
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.model.qwen3_config import Qwen3Config
from gleaner.actors.protocol.instances import Work
from gleaner.actors.protocol.sampling_params import CANNOT_CONTINUE, Grammar, Sampling
from gleaner.actors.protocol.score_rows import Score, Scores, unpacked
from gleaner.actors.protocol.weights import Fetched
from gleaner.actors.weights.image.store import ImageStore
from gleaner.configs.load import from_tree

MODEL = Qwen3Config(
    vocab_size=64,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=12,  # 48 bytes a norm: the image has gaps
    tie_word_embeddings=True,
    eos_token_ids=(1, 3),
)


def published(directory: Path, version: int = 3) -> tuple[Qwen3, Fetched]:
    torch.manual_seed(version)
    model = Qwen3(MODEL)
    specs = tuple(weight_layout(model))
    store = ImageStore(directory)
    with store.create(version, image_bytes(specs), specs) as draft:
        write_weights(model, draft.view)
        draft.seal()
    fetched = Fetched(
        version=version,
        root=b"0123",
        path=str(store.path(version)),
        tensors=specs,
        model_config=msgspec.json.encode(MODEL),
        pulled_bytes=0,
        seconds=0.0,
    )
    return model, fetched


def test_image_becomes_a_folder_bit_for_bit(tmp_path: Path) -> None:
    model, fetched = published(tmp_path / "store")
    folder = ServedFolder().write(fetched)
    held = load_file(folder / "model.safetensors")
    assert {name: weights.shape for name, weights in held.items()} == {
        name: weights.shape for name, weights in model.named_parameters()
    }
    loaded = load_checkpoint(folder)
    assert loaded.config == model.config
    for name, weights in model.named_parameters():
        assert torch.equal(weights, loaded.get_parameter(name)), name


def test_folders_of_dead_processes_are_removed(tmp_path: Path) -> None:
    _, fetched = published(tmp_path / "store")
    dead, living = tmp_path / "store" / "served-4194304-ab", tmp_path / "store" / f"served-{os.getppid()}-ab"
    dead.mkdir()
    living.mkdir()
    own = ServedFolder()
    folder = own.write(fetched)
    assert not dead.exists()
    assert living.exists()
    own.forget(fetched)
    assert (folder / "config.json").exists()
    assert not (folder / "model.safetensors").exists()
    own.remove()
    assert not folder.exists()


def meta(reported: int, total: int, finish: str | None = None) -> Meta:
    pairs = [(-0.5 * place, 100 + place, None) for place in range(total - reported, total)]
    reason = None if finish is None else FinishReason(type=finish)
    rows = msgspec.Raw(msgspec.json.encode(pairs))
    return Meta(
        completion_tokens=total, output_token_logprobs=rows, finish_reason=reason, weight_version="v3"
    )


TEXTS = st.none() | st.text('[]",\\a1', max_size=6)
ROWS = st.lists(st.tuples(st.floats(-50, 0), st.integers(0, 1 << 20), TEXTS), max_size=8)


@given(ROWS, st.integers(0, 9), st.booleans())
def test_newest_rows_are_the_last_ones_despite_texts(
    rows: list[tuple[float, int, str | None]], count: int, blanks: bool
) -> None:
    body = json.dumps(rows, separators=(", ", ": ") if blanks else (",", ":")).encode()
    assert newest_rows(body, count) == (rows[-count:] if count else [])


@pytest.mark.parametrize("body", [b"[[-0.5,3", b"[[-0.5]]", b"[]]", b"{}"])
def test_malformed_rows_are_a_broken_server(body: bytes) -> None:
    with pytest.raises(ServerDied, match="not what it should be"):
        newest_rows(body, 1)


@pytest.mark.parametrize("reported", [2, 5], ids=["incremental", "cumulative"])
def test_chunk_has_new_tokens_in_either_stream_mode(reported: int) -> None:
    assert new_of(meta(reported, 5, "stop"), seen=3) == Chunk([103, 104], [-1.5, -2.0], "stop", 0, "v3")


def test_stream_with_a_gap_is_an_error() -> None:
    with pytest.raises(ServerDied, match="goes on at token 4, 3 came"):
        new_of(meta(1, 5), seen=3)


def test_sampling_is_written_for_sglang_minus_the_prefix() -> None:
    asked = Sampling(top_p=0.5, top_k=7, min_new_tokens=5, stop_token_ids=(9,), ignore_eos=True)
    given = sampling_params(Ask("r", array("I", [1, 2, 3]), 10, 0.7, 2**64 - 1, made=2, sampling=asked))
    plain = {"min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
    assert plain | msgspec.json.decode(msgspec.json.encode(given)) == {
        **plain,
        "max_new_tokens": 10,
        "temperature": 0.7,
        "sampling_seed": 2**63 - 1,
        "top_p": 0.5,
        "top_k": 7,
        "min_new_tokens": 3,
        "ignore_eos": True,
        "stop_token_ids": [9],
    }


def test_penalties_of_continued_requests_are_refused() -> None:
    ask = Ask("r", array("I", [1, 2]), 10, 1.0, 0, made=1, sampling=Sampling(presence_penalty=0.5))
    with pytest.raises(ServerRefused, match="begun by another"):
        sampling_params(ask)


def test_grammar_is_written_for_sglang_but_never_continued() -> None:
    asked = Sampling(grammar=Grammar(kind="json_schema", text="{}"), logit_bias=((7, -100.0),))
    given = sampling_params(Ask("r", array("I", [1, 2]), 10, 1.0, 0, sampling=asked))
    params = msgspec.json.decode(msgspec.json.encode(given))
    assert (params["json_schema"], params["logit_bias"]) == ("{}", {"7": -100.0})
    assert "regex" not in params
    with pytest.raises(ServerRefused, match=f"{CANNOT_CONTINUE}$") as refused:
        sampling_params(Ask("r", array("I", [1, 2]), 10, 1.0, 0, made=1, sampling=asked))
    assert refused.value.never
    biased = Sampling(logit_bias=((7, 1.0),))
    sampling_params(Ask("r", array("I", [1, 2]), 10, 1.0, 0, made=1, sampling=biased))


def test_unservable_request_is_refused_not_aborted() -> None:
    end = {"type": "abort", "message": "Failed to compile the grammar", "status_code": 400}
    event = {"meta_info": {"completion_tokens": 0, "finish_reason": end}}
    with pytest.raises(ServerRefused, match="compile the grammar") as refused:
        meta_of(msgspec.json.encode(event))
    assert refused.value.never
    end["status_code"] = None
    assert meta_of(msgspec.json.encode(event)).finish_reason is not None


@given(st.integers(1, 4), st.integers(0, 3), st.booleans(), st.booleans(), st.sampled_from([0.0, 0.5, 1.0]))
def test_likeliest_tokens_are_rows_in_either_stream_mode(
    prompt: int, made: int, of_prompt: bool, cumulative: bool, temperature: float
) -> None:
    """A token of the prompt has -1, a rival of it 1 more; a token of the response has -2 under the
    temperature."""
    wanted = Scores(top=1, prompt=of_prompt)
    tokens = array("I", range(10, 10 + prompt + made))
    reading = ScoreReading(Ask("r", tokens, 9, temperature, 0, made=made, scores=wanted), wanted)
    given = list(tokens[reading.first :])
    came: list[int] = []
    rows = b""
    for fresh in ([50], [51, 52], [53]):
        came += fresh
        sent = came if cumulative else fresh
        meta = Meta(
            completion_tokens=len(came),
            input_token_logprobs=raw([[None, given[0], None], *([-1.0, one, None] for one in given[1:])]),
            input_top_logprobs=raw([None, *([[0.0, one + 1, None]] for one in given[1:])]),
            output_top_logprobs=raw([[[-1.0, one + 1, None]] for one in sent]),
        )
        last = "length" if 53 in fresh else None
        chunk = Chunk(fresh, [-2.0] * len(fresh), last)  # type: ignore[arg-type]
        rows = reading.read(meta, chunk, len(came) - len(fresh)).experts
    scores = unpacked(np.frombuffer(rows, "<i4").reshape(prompt + made + 3, 3))
    begin = 0 if of_prompt else prompt - 1
    assert scores[:begin] == [Score(0.0, ((0, 0.0),))] * begin, "no scores were requested for these"
    assert scores[begin:-4] == [Score(-1.0, ((one + 1, 0.0),)) for one in tokens[begin + 1 :]]
    step = temperature or 1.0
    assert scores[-4:] == [Score(-2.0, ((one + 1, -2.0 + step),)) for one in came]


def raw(rows: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(rows))


def test_missing_rows_are_asked_again_and_malformed_refused() -> None:
    wanted = Scores(top=1)
    reading = ScoreReading(Ask("r", array("I", [1]), 9, 1.0, 0, scores=wanted), wanted)
    chunk = Chunk([5], [-1.0], "length")
    assert reading.read(Meta(completion_tokens=1), chunk, 0).experts == b"", "missing rows are asked again"
    with pytest.raises(ServerDied, match="likeliest"):
        reading.read(Meta(completion_tokens=1, output_top_logprobs=raw({"no": "list"})), chunk, 0)


def script(tmp_path: Path, text: str) -> ServerProcess:
    return ServerProcess([sys.executable, "-c", text], {"SAID": "hello"}, tmp_path / "server.log")


def until(what: object, process: ServerProcess) -> None:
    end_s = time.monotonic() + 60
    while what not in process.tail():
        assert time.monotonic() < end_s, process.tail()
        time.sleep(0.02)


def test_ended_server_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    process = script(tmp_path, "import os; print(os.environ['SAID'], flush=True); raise SystemExit(3)")
    end_s = time.monotonic() + 60
    with pytest.raises(ServerDied, match=r"exit 3.*\n.*hello"):
        while time.monotonic() < end_s:
            process.require_alive()
            time.sleep(0.02)


def test_killing_a_server_ends_its_children(tmp_path: Path) -> None:
    child = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    )
    process = script(tmp_path, child)
    end_s = time.monotonic() + 60
    while not process.tail().isdigit():
        assert time.monotonic() < end_s
        time.sleep(0.02)
    below = int(process.tail())
    process.kill()
    process.reap()
    while Path(f"/proc/{below}").exists() and "Z" not in Path(f"/proc/{below}/stat").read_text():
        assert time.monotonic() < end_s, "a child of the server lives on"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_no_server_process_outlives_a_killed_worker(tmp_path: Path) -> None:
    """Even a process that was just being started, before it asked the kernel to end with its parent."""
    below = "import subprocess; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    worker = (
        "import sys, time, pathlib; from gleaner.actors.engine.servers.server_process import ServerProcess; "
        f"log = pathlib.Path({str(tmp_path / 'log')!r}); "
        f"server = ServerProcess([sys.executable, '-c', {below!r}], {{}}, log); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", worker])
    try:
        end_s = time.monotonic() + 60
        while not (tmp_path / "log").exists() or not (tmp_path / "log").read_text().strip():
            assert time.monotonic() < end_s
            time.sleep(0.02)
        started = int((tmp_path / "log").read_text())
        assert not gone(started)
    finally:
        process.kill()
        process.wait(60)
    while not gone(started):
        assert time.monotonic() < end_s, "a child of the server lives on"
        time.sleep(0.02)


def test_server_log_is_bounded_and_keeps_its_end(tmp_path: Path) -> None:
    text = f"import time; print('x' * {2 * MAX_LOG_BYTES}); print('end', flush=True); time.sleep(600)"
    process = script(tmp_path, text)
    until("end", process)
    process.trim_log()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= MAX_LOG_BYTES
    process.kill()
    process.reap()


def test_server_that_cannot_start_is_reported_with_output(tmp_path: Path) -> None:
    _, fetched = published(tmp_path / "store")
    config = from_tree({"engine": {"kind": "sglang", "environment": str(tmp_path)}}, "test")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\necho no module named $2 >&2\nexit 1\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    host = DrivenHost(sglang_host(config))
    try:
        with pytest.raises(ServerDied, match=r"exit 1(.|\n)*no module named sglang.launch_server"):
            host.turn(StepCommands(load=fetched))
    finally:
        host.close()
        assert host.joined(10)
    assert not list((tmp_path / "store").glob("served-*")), "the folder of the server is left"


def test_server_command_follows_the_settings(tmp_path: Path) -> None:
    config = from_tree(
        {"engine": {"kind": "sglang", "slots": 5, "max_prompt_tokens": 100, "args": ["--dtype", "float32"]}},
        "t",
    )
    command = sglang_command(config, "http://127.0.0.1:7001", tmp_path, "v3-00")
    options = dict(zip(command[3::2], command[4::2], strict=False))
    assert command[:3] == [sys.executable, "-m", "sglang.launch_server"]
    assert options["--port"] == "7001"
    assert options["--max-running-requests"] == "5"
    assert int(options["--context-length"]) > 100 + config.rollout.max_new_tokens
    assert command[-2:] == ["--dtype", "float32"]


def test_server_command_has_the_width_and_the_copies_of_its_host(tmp_path: Path) -> None:
    config = from_tree({"engine": {"kind": "sglang", "widths": [2, 4]}}, "t")
    command = sglang_command(config, "http://127.0.0.1:7001", tmp_path, "v3-00", Spread(2, 4))
    assert command[command.index("--tp-size") + 1] == "2"
    assert command[command.index("--dp-size") + 1] == "4"
    assert "--tp-size" not in sglang_command(config, "http://127.0.0.1:7001", tmp_path, "v3-00")
    assert server_host(config, spread=Spread(2, 4)).engines == 4


def test_capacity_of_a_server_is_what_it_reports_of_its_memory() -> None:
    body = {
        "internal_states": [{"memory_usage": {"weight": 15.0, "kvcache": 30.0, "token_capacity": 200_000}}]
    }
    assert capacity_of(msgspec.convert(body, ServerInfo)) == (200_000, 100_000)
    assert capacity_of(msgspec.convert({"internal_states": [{}]}, ServerInfo)) == (0, 0)
    assert capacity_of(ServerInfo()) == (0, 0)


class SilentServer:
    """SGLang as far as its health checks: makes the token of a probe, and then none. Has a thread."""

    def __init__(self) -> None:
        self.version = "nothing"
        self.logprob = 0.0
        self.paths: list[str] = []
        self.port = free_port()
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)

    async def _run(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        self._ready.set()
        while not self._stop.is_set():
            await asyncio.sleep(0.02)
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        if request.path == "/update_weights_from_disk":
            self.version = (await request.json())["weight_version"]
        if request.path != "/generate":
            answer = {"success": True, "model_path": "/m", "weight_version": self.version, "message": ""}
            return web.json_response(answer)
        tokens = (await request.json())["sampling_params"]["max_new_tokens"]
        reply = web.StreamResponse()
        await reply.prepare(request)
        if tokens > 4:
            await asyncio.sleep(60)
        meta = {
            "completion_tokens": tokens,
            "output_token_logprobs": [[self.logprob, 7, None]] * tokens,
            "finish_reason": {"type": "length"},
        }
        await reply.write(b"data: " + msgspec.json.encode({"meta_info": meta}) + b"\n\ndata: [DONE]\n\n")
        return reply


@pytest.fixture
def server() -> Iterator[SilentServer]:
    running = SilentServer()
    yield running
    running.close()


def attached(server: SilentServer) -> DrivenHost:
    engine = {"kind": "sglang", "url": f"http://127.0.0.1:{server.port}", "stall_s": 1.0}
    return DrivenHost(sglang_host(from_tree({"engine": engine}, "test")))


def given_at(temperature: float, ticket: int, new: int = 9) -> Work:
    return Work(
        ticket=ticket,
        prompt=array("I", [5]).tobytes(),
        prefix=b"",
        seed=0,
        max_new_tokens=new,
        temperature=temperature,
    )


@pytest.mark.parametrize(("logprob", "refused"), [(0.0, []), (-2.0, [2])])
def test_temperatures_are_refused_when_log_probs_omit_them(
    server: SilentServer, tmp_path: Path, logprob: float, refused: list[int]
) -> None:
    server.logprob = logprob
    _, fetched = published(tmp_path / "store")
    host = attached(server)
    try:
        host.turn(StepCommands(load=fetched))
        given = [given_at(1.0, 1, new=2), given_at(0.7, 2, new=2), given_at(0.0, 3, new=2)]
        turns = [host.turn(StepCommands(adds=[(3, given)]))]
        while sum(2 * len(turn.refusals) + len(turn.output or ()) for turn in turns) < 2 * len(given):
            turns.append(host.turn(StepCommands()))
        assert [ticket for turn in turns for one in turn.refusals for ticket in one.tickets] == refused
    finally:
        host.close()
        assert host.joined(10)


def test_healthy_server_without_tokens_is_detected(server: SilentServer, tmp_path: Path) -> None:
    _, fetched = published(tmp_path / "store")
    host = attached(server)
    try:
        assert host.turn(StepCommands(load=fetched)).version == 3
        asked = len(server.paths)
        with pytest.raises(ServerDied, match="1 requests are in the server and no token came"):
            commands = StepCommands(adds=[(3, [given_at(1.0, 1)])])
            for _ in range(20):
                assert host.turn(commands).output is None
                commands = StepCommands()
        assert server.paths[asked:].count("/model_info") >= 2, "the health checks were answered"
    finally:
        host.close()
        assert host.joined(10)


def test_free_port_is_outside_the_ephemeral_range() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(20):
        port = free_port()
        assert 1024 <= port < max(first, FIRST_PORT + PORTS)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", port))
