"""Check of a released SGLang against our requests and the fields we read; run by an interpreter that has one.

Standard input: JSON with `posts` (path to bodies), `absent` (paths that it must not have), `arguments` (of
the server), `reads` (a module to the words that its source must have), `loads` (what our loader of weights
is given, and the tensors that a model must have got then) and `keeps` (whether it holds requests over a
change). Standard output: JSON with the version and what does not fit. The bodies go through SGLang's own HTTP
application, to a manager that notes what reached it.

    python sglang_contract.py [FOLDER of another release, before the installed one]
"""

import argparse
import asyncio
import base64
import contextlib
import dataclasses
import functools
import importlib.metadata
import inspect
import json
import sys
from unittest import mock

PLATFORMS = "sglang.srt.platforms"
CONTROL = (
    "pause_generation",
    "continue_generation",
    "update_weights_from_disk",
    "update_weights_from_tensor",
    "begin_weight_update",
    "end_weight_update",
    "release_memory_occupation",
    "resume_memory_occupation",
)


def without_platforms() -> None:
    """Another release may not know the interface of the installed platform, and needs none to parse JSON."""
    found = importlib.metadata.entry_points

    def entry_points(**wanted):
        return importlib.metadata.EntryPoints(()) if wanted.get("group") == PLATFORMS else found(**wanted)

    importlib.metadata.entry_points = entry_points


class Manager(mock.MagicMock):
    """A replacement of SGLang's tokenizer manager."""

    def took(self, name):
        async def note(*given, **named):
            self.noted.append((name, [*given, *named.values()]))
            return True, "", 0

        return note

    async def generate_request(self, given, request=None, **more):
        self.noted.append(("generate_request", [given]))
        yield {"meta_info": {}}


def values_of(given):
    """Fields that reached the manager, as plain values by name."""
    if dataclasses.is_dataclass(given):
        return {field.name: getattr(given, field.name, None) for field in dataclasses.fields(given)}
    if hasattr(given, "__struct_fields__"):
        return {name: getattr(given, name) for name in given.__struct_fields__}
    return {}


def as_sent(value):
    """Bytes were base64 in JSON."""
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [base64.b64encode(one).decode() for one in value]
    return value


async def faults_of_posts(posts, absent):
    import httpx
    from sglang.srt.entrypoints import http_server

    app = http_server.app
    manager = Manager()
    manager.noted = []
    for name in CONTROL:
        setattr(manager, name, manager.took(name))
    manager.abort_request = lambda *given, **named: manager.noted.append(
        ("abort_request", [*given, *named.values()])
    )
    state = mock.MagicMock()
    state.tokenizer_manager = manager
    http_server.set_global_state(state)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://contract") as client:
        for path in absent:
            if (await client.post(path, json={})).status_code != 404:
                yield f"{path} is there"
        for path, bodies in posts.items():
            for body in bodies:
                manager.noted.clear()
                reply = None
                with contextlib.suppress(
                    TypeError, ValueError
                ):  # the reply is a mock; the manager recorded the request
                    reply = await client.post(path, json=body)
                if not manager.noted:
                    outcome = "nothing" if reply is None else f"{reply.status_code} {reply.text[:300]}"
                    yield f"{path}: {body} did not reach the manager: {outcome}"
                    continue
                _, given = manager.noted[0]
                known = {}
                for one in given:
                    known |= values_of(one)
                for name, sent in body.items():
                    if name in known:
                        if as_sent(known[name]) != sent:
                            yield f"{path}: {name} came as {known[name]!r}, {sent!r} was sent"
                    elif sent not in given:
                        yield f"{path}: {name} is unknown there, known are {sorted(known)}"


def faults_of_sampling(bodies):
    from sglang.srt.sampling.sampling_params import SamplingParams

    for body in bodies:
        try:
            params = SamplingParams(**body["sampling_params"])
            params.verify(1000)
        except (TypeError, ValueError, AssertionError) as problem:
            yield f"sampling_params {body['sampling_params']}: {problem!r}"


def faults_of_loads(loads):
    """SGLang's own updater of weights, with a model that notes what its loader is fed."""
    import torch
    from sglang.srt.model_executor.model_runner_components import weight_updater
    from sglang.srt.utils.common import MultiprocessingSerializer

    class Model(torch.nn.Module):
        def load_weights(self, weights):
            self.fed = {name: tensor.tolist() for name, tensor in weights}

    sys.path.insert(0, loads["modules"])
    model, state = Model(), mock.MagicMock(tp_rank=0, weight_cache_mode="off")
    updater = weight_updater.WeightUpdater(
        tp_rank=0,
        device="cpu",
        gpu_id=0,
        model_config=None,
        custom_weight_loaders=[loads["loader"]],
        get_model=lambda: model,
        update_model_fields=None,
        recapture_cuda_graph=None,
        get_model_runner=None,
    )
    given = MultiprocessingSerializer.deserialize(base64.b64decode(loads["named"]))
    names = ("get_parallel", "get_model")
    with mock.patch.multiple(weight_updater, create=True, **{name: lambda: state for name in names}):
        updater.update_weights_from_tensor(given, loads["loader"])
    if getattr(model, "fed", None) != loads["tensors"]:
        yield f"the loader fed {getattr(model, 'fed', None)}, expected {loads['tensors']}"


def faults_of_holding(keeps):
    """Our plugin is found by the path alone, and its hooks report the tokens of this release's scheduler."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.plugins import GENERAL_PLUGINS_GROUP
    from sglang.srt.plugins.hook_registry import HookRegistry

    [entry] = importlib.metadata.entry_points(group=GENERAL_PLUGINS_GROUP, name="gleaner")
    before = Scheduler.pause_generation, Scheduler.get_internal_state
    entry.load()()
    HookRegistry.apply_hooks()
    if not all(new is not old for new, old in zip(hooked(Scheduler), before, strict=True)):
        yield "SGLang does not apply our hooks"
    plugin = importlib.import_module(entry.module)
    if plugin.drops_caches_of_what_waits(Scheduler) is not keeps:
        yield f"whether it holds requests is to be {keeps}, and our plugin finds the contrary"
    streamed = []
    streamer = mock.MagicMock()
    streamer.stream_output = lambda reqs, logprob: streamed.append(
        [(one.rid, one.sampling_params.stream_interval, logprob) for one in reqs]
    )
    waiting = [request("a", made=5, sent=2), request("b", made=4, sent=4), request("c", made=0, sent=0)]
    scheduler = mock.MagicMock(spec=["waiting_queue", "_engine_paused", "output_streamer", "is_fully_idle"])
    scheduler.waiting_queue, scheduler._engine_paused, scheduler.output_streamer = waiting, True, streamer
    scheduler.is_fully_idle = functools.partial(Scheduler.is_fully_idle, scheduler)
    plugin.tell_the_rest(None, scheduler, mock.MagicMock(mode="retract"))
    if streamed != [[("a", 1, True)]] or waiting[0].sampling_params.stream_interval != 8:
        yield f"streamed: {streamed}"
    answer = mock.MagicMock(internal_state={})
    plugin.say_what_was_made(answer, scheduler, None)
    expected = {"gleaner": {"paused": True, "made": {"a": 5, "b": 4, "c": 0}}} if keeps else {}
    if answer.internal_state != expected:
        yield f"it says {answer.internal_state}"
    words = {
        Scheduler: ("self._engine_paused = True", "self.waiting_queue", "self.output_streamer"),
        importlib.import_module("sglang.srt.managers.schedule_batch"): (
            "self.send_token_offset",
            "self.rid = ",
        ),
        importlib.import_module("sglang.srt.sampling.sampling_params"): ("stream_interval",),
    }
    for where, needed in words.items():
        source = inspect.getsource(where)
        yield from (f"{where} has no {word}" for word in needed if word not in source)


def hooked(scheduler):
    return scheduler.pause_generation, scheduler.get_internal_state


def request(rid, made, sent):
    """A request as a scheduler has it."""
    params = mock.MagicMock(stream_interval=8)
    given = {"output_ids": [0] * made, "send_token_offset": sent, "sampling_params": params}
    return mock.MagicMock(rid=rid, stream=True, return_logprob=True, **given)


def faults_of_arguments(arguments):
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    try:
        _, unknown = parser.parse_known_args(arguments)
    except (argparse.ArgumentError, SystemExit) as problem:
        yield f"arguments: {problem}"
        return
    if unknown:
        yield f"arguments: {unknown} are unknown"


def faults_of_reads(reads):
    for module, words in reads.items():
        source = inspect.getsource(importlib.import_module(module))
        for word in words:
            if f'"{word}"' not in source and f"{word}:" not in source:
                yield f"{module} does not tell {word}"


async def main():
    asked = json.load(sys.stdin)
    if len(sys.argv) > 1:
        sys.path.insert(0, sys.argv[1])
        without_platforms()
    import sglang

    faults = [fault async for fault in faults_of_posts(asked["posts"], asked["absent"])]
    faults += faults_of_sampling(asked["posts"]["/generate"])
    faults += faults_of_arguments(asked["arguments"])
    faults += faults_of_reads(asked["reads"])
    faults += faults_of_loads(asked["loads"])
    faults += faults_of_holding(asked["keeps"])
    print(json.dumps({"version": sglang.__version__, "faults": faults}))


if __name__ == "__main__":
    asyncio.run(main())
