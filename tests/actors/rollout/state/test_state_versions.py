"""Versions over real data sockets: changes, gates, single requests, deadlines."""

import asyncio
import hashlib
from array import array
from pathlib import Path

import msgspec
import pytest
import torch
from test_actors_rollout_plane import MODEL, NEW_TOKENS, Plane, plane

from gleaner.actors.model.flat_image import weight_layout, write_weights
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.model.tensor_spec import image_bytes
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.requests import Generate, Generated, VersionNotReady
from gleaner.actors.protocol.rollout import Groups, PublishVersion, SubmitBatch, TakeGroups, Weights
from gleaner.actors.protocol.weights import Publish, Published
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.actors.weights.image.store import ImageStore
from gleaner.supervisor import Done, Message, Refused

PROMPT = array("I", [5, 9, 11]).tobytes()
HELLO = Generate(id="hello", prompt=PROMPT, max_new_tokens=NEW_TOKENS, seed=7)


async def newer_weights(running: Plane, version: int) -> Weights:
    """Publish this version, whose weights differ from those before."""
    torch.manual_seed(version)
    model = Qwen3(MODEL)
    specs = tuple(weight_layout(model))
    with ImageStore(running.directory / "store").create(version, image_bytes(specs), specs) as draft:
        write_weights(model, draft.view)
        draft.seal()
    publish = Publish(version=version, tensors=specs, model_config=msgspec.json.encode(MODEL))
    published = await running.source.ask("r/transfer", publish, Published)
    return Weights(version=version, root=published.root, sources=("r/transfer",))


async def publish(running: Plane, version: int) -> None:
    weights = await newer_weights(running, version)
    await running.head.ask("rollout/manager", PublishVersion(weights=weights), Done)


async def generate(running: Plane, request: Generate) -> Generated:
    answer = await running.head.ask("rollout/manager", request, Message, deadline_s=60.0)
    assert isinstance(answer, Generated), answer
    return answer


async def open_to_newer(running: Plane) -> None:
    """A batch whose requests may end under newer weights than those that they began with."""
    prompts = tuple(
        Prompt(split="train", index=g, tokens=(2 + g, 5), seeds=(2 * g, 2 * g + 1)) for g in range(6)
    )
    batch = BatchSubmitted(
        batch="step-5", version=4, prompts=prompts, max_new_tokens=NEW_TOKENS, min_version=3
    )
    await running.head.ask("rollout/manager", SubmitBatch(batch=batch, weights=running.weights), Done)


async def all_groups(running: Plane) -> Groups:
    take = TakeGroups(batch="step-5", taker=1, have=[], min_groups=6, wait_s=20.0)
    return await running.head.ask("rollout/manager", take, Groups, deadline_s=60.0)


async def test_requests_continue_under_newer_weights_with_spans(tmp_path: Path) -> None:
    async with plane(tmp_path, held=True) as running:
        host = await running.host("s1")
        await open_to_newer(running)
        await running.until_decoding(50)
        await publish(running, 4)
        running.hold.end()
        groups = await all_groups(running)
        spans = [sample.spans for group in groups.groups for sample in group.samples]
        assert {span.version for own in spans for span in own} == {3, 4}
        assert any([span.version for span in own] == [3, 4] for own in spans), "some changed versions"
        assert all(own[0].start == 0 for own in spans)
        assert (await running.figures()).tokens_generated_twice == 0
        await host.system.close()


async def test_repeated_single_request_is_one_request(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        host = await running.host("s1")
        await running.submit()
        first = await generate(running, HELLO)
        assert first.status in ("stop", "length")
        assert len(first.tokens) >= 12
        assert [span.version for span in first.versions] == [3] == [first.version_start]
        assert first.sha256 == hashlib.sha256(first.tokens).digest()
        assert await generate(running, msgspec.structs.replace(HELLO, attempt=2)) == first
        have = first.tokens[:8]
        rest = await generate(
            running,
            msgspec.structs.replace(HELLO, accepted=2, accepted_sha256=hashlib.sha256(have).digest()),
        )
        assert (rest.start, have + rest.tokens) == (2, first.tokens)
        with pytest.raises(Refused, match="first 2 tokens are others"):
            await generate(running, msgspec.structs.replace(HELLO, accepted=2, accepted_sha256=b"x"))
        with pytest.raises(Refused, match="different contents"):
            await generate(running, msgspec.structs.replace(HELLO, seed=8))
        await host.system.close()


async def test_single_request_survives_manager_and_instance_deaths(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        hosts = [await running.host("s1")]
        await running.submit()
        whole = await generate(running, msgspec.structs.replace(HELLO, id="calm"))
        await running.responses()
        running.hold.begin(turns=5)
        asked = asyncio.create_task(generate(running, HELLO))
        await running.until_decoding((await running.figures()).tokens_collected + 3)
        running.head.kill("rollout/manager")
        hosts[0].kill("s1/engine")
        hosts.append(await running.host("s2"))
        running.head.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(running.config)))
        running.hold.end()
        answer = await asked
        assert answer.tokens == whole.tokens
        assert (await generate(running, HELLO)) == answer
        for host in hosts:
            await host.system.close()


async def test_unmet_gate_is_refused_or_waited_for(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        host = await running.host("s1")
        await running.submit()
        await generate(running, HELLO)
        later = msgspec.structs.replace(HELLO, id="later", min_version=4)
        refused = await running.head.ask("rollout/manager", later, VersionNotReady)
        assert refused == VersionNotReady(target=4, exact=False, applied=3, retryable=True)
        waiting = asyncio.create_task(generate(running, msgspec.structs.replace(later, wait_s=20.0)))
        await running.responses()
        await publish(running, 4)
        answer = await waiting
        assert answer.version_start == answer.version_end == 4
        passed = msgspec.structs.replace(HELLO, id="passed", exact_version=3)
        refused = await running.head.ask("rollout/manager", passed, VersionNotReady)
        assert refused == VersionNotReady(target=3, exact=True, applied=4, retryable=False)
        with pytest.raises(Refused, match="exclude each other"):
            await generate(running, msgspec.structs.replace(HELLO, id="x", min_version=1, exact_version=1))
        await host.system.close()


async def test_overdue_request_ends_early_with_a_whole_group(tmp_path: Path) -> None:
    async with plane(tmp_path, request_deadline_s=0.05) as running:
        host = await running.host("s1")
        await open_to_newer(running)
        groups = await all_groups(running)
        lengths = [len(sample.tokens) // 4 for group in groups.groups for sample in group.samples]
        assert len(lengths) == 12
        assert min(lengths) < NEW_TOKENS, "some responses were cut"
        scores = [sample.score for group in groups.groups for sample in group.samples]
        assert scores == pytest.approx([length / NEW_TOKENS for length in lengths]), "scored at this length"
        figures = await running.figures()
        assert figures.tokens_collected == sum(lengths)
        assert figures.tokens_generated_twice == 0
        assert not figures.tokens_wasted
        await host.system.close()


async def test_unserved_single_request_ends_at_its_deadline(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        await running.submit()
        answer = await generate(running, msgspec.structs.replace(HELLO, deadline_s=1.0))
        assert (answer.status, answer.tokens, answer.versions) == ("deadline", b"", ())


async def test_request_that_no_model_serves_is_refused(tmp_path: Path) -> None:
    async with plane(tmp_path) as running:
        host = await running.host("s1")
        await running.submit()
        await running.responses()  # from here on the version is served
        strange = Generate(id="strange", prompt=array("I", [MODEL.vocab_size]).tobytes(), max_new_tokens=4)
        for _ in range(2):
            with pytest.raises(Refused, match="outside of the vocabulary"):
                await running.head.ask("rollout/manager", strange, Generated)
        assert (await generate(running, HELLO)).status in ("stop", "length")
        figures = await running.figures()
        assert (figures.queued, figures.pending, figures.executing) == (0, 0, 0)
        await host.system.close()
