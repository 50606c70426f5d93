"""Whether a released SGLang takes what we send and tells what we read; run by an interpreter that has one.

Standard input: JSON with `posts` (path to bodies), `arguments` (of the server) and `reads` (a module to the
words that its source must have). Standard output: JSON with the version and what does not fit. The bodies go
through SGLang's own HTTP application, to a manager that notes what reached it.

    python sglang_contract.py [FOLDER of another release, before the installed one]
"""

import argparse
import asyncio
import contextlib
import dataclasses
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
    """In the place of SGLang's tokenizer manager."""

    def took(self, name):
        async def note(*given, **named):
            self.noted.append((name, [*given, *named.values()]))
            return True, "", 0

        return note

    async def generate_request(self, given, request=None, **more):
        self.noted.append(("generate_request", [given]))
        yield {"meta_info": {}}


def values_of(given):
    """What reached the manager, as plain values by name."""
    if dataclasses.is_dataclass(given):
        return {field.name: getattr(given, field.name, None) for field in dataclasses.fields(given)}
    if hasattr(given, "__struct_fields__"):
        return {name: getattr(given, name) for name in given.__struct_fields__}
    return {}


async def faults_of_posts(posts):
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
        for path, bodies in posts.items():
            for body in bodies:
                manager.noted.clear()
                reply = None
                with contextlib.suppress(TypeError, ValueError):  # the answer of a mock; what came is noted
                    reply = await client.post(path, json=body)
                if not manager.noted:
                    said = "nothing" if reply is None else f"{reply.status_code} {reply.text[:300]}"
                    yield f"{path}: {body} did not reach the manager: {said}"
                    continue
                _, given = manager.noted[0]
                known = {}
                for one in given:
                    known |= values_of(one)
                for name, sent in body.items():
                    if name in known:
                        if known[name] != sent:
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

    faults = [fault async for fault in faults_of_posts(asked["posts"])]
    faults += faults_of_sampling(asked["posts"]["/generate"])
    faults += faults_of_arguments(asked["arguments"])
    faults += faults_of_reads(asked["reads"])
    print(json.dumps({"version": sglang.__version__, "faults": faults}))


if __name__ == "__main__":
    asyncio.run(main())
