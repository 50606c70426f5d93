"""Real clients against the gateway's server: it accepts all that they send and has all that they read.

The requests behind the server are fakes. The functions of `clients/` take a base URL, so they also run
against a gateway whose engines are being killed.
"""

import asyncio

import pytest

from gleaner.actors.gateway.ask import End, NotReady, Piece
from gleaner.actors.gateway.routes import ROUTES
from tests.actors.gateway.clients import (
    areal,
    everyone,
    miles,
    plain_openai,
    prime_rl,
    roll,
    skyrl,
    slime,
    trl,
    trl_package,
)
from tests.actors.gateway.gateway_world import serving
from tests.actors.gateway.story import Story, letter

PROMPT = [97, 98, 99]
ALPHABET = [letter(position) for position in range(26)]


@pytest.mark.parametrize("own_end", [4, 10**9])
@pytest.mark.parametrize("name", sorted(everyone.ALL))
async def test_rollout_equals_the_made_tokens(name: str, own_end: int) -> None:
    async with serving(ROUTES, requests=Story(own_end=own_end)) as world:
        rollout = (await everyone.ALL[name](world.url, "tiny", PROMPT, 9)).check(9)
        asked = world.requests.asked[0]
    count = min(9, own_end)
    assert rollout.tokens == ALPHABET[:count]
    assert rollout.logprobs == [-(position + 1) / 8 for position in range(count)]
    assert rollout.reason == ("stop" if own_end < 9 else "length")
    assert list(asked.prompt) == PROMPT
    assert asked.max_new_tokens == 9


async def test_openai_package_streams_text_and_log_probs() -> None:
    async with serving(ROUTES, requests=Story()) as world:
        text = await plain_openai.rollout(world.url, "tiny", PROMPT, 6)
        chat = await plain_openai.chat(world.url, "tiny", "hello", 6)
    assert (text.text, text.version) == ("abcdef", "4")
    assert (chat.text, len(chat.logprobs)) == ("abcdef", 6)


async def test_openai_package_raises_its_own_error() -> None:
    import openai  # a second: not in every worker

    async with serving(ROUTES, requests=Story()) as world, plain_openai.client_of(world.url) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(model="tiny", prompt="a", best_of=3)
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="other", prompt="a")
        assert (await client.models.retrieve("tiny")).id == "tiny"
    assert refused.value.param == "best_of"


async def test_stream_closed_by_openai_package_leaves_its_request() -> None:
    async with serving(ROUTES, requests=Story(pause_s=0.01)) as world:
        await plain_openai.abandon(world.url, "tiny", PROMPT, 120)
        for _ in range(100):
            if world.requests.left:
                break
            await asyncio.sleep(0.02)
        assert world.requests.left == [world.requests.asked[0].id]


async def test_prime_rl_learns_and_respects_the_longest_prompt() -> None:
    from renderers.client import OverlongPromptError

    async with serving(ROUTES, requests=Story()) as world:
        assert (await prime_rl.rollout(world.url, "tiny", PROMPT, 5, longest=None)).tokens == ALPHABET[:5]
        with pytest.raises(OverlongPromptError) as refused:
            await prime_rl.rollout(world.url, "tiny", [97] * 193, 5, longest=None)
        assert len(world.requests.asked) == 1
    assert refused.value.max_prompt_len == 192


async def test_skyrl_tokenizes_renders_and_finishes_its_session() -> None:
    async with serving(ROUTES, requests=Story()) as world:
        tokens = await skyrl.tokenize(world.url, "tiny", "hi")
        assert await skyrl.detokenize(world.url, "tiny", tokens) == "hi"
        rendered = await skyrl.render(world.url, "tiny", "hi")
        await skyrl.finish(world.url)
        await skyrl.rollout(world.url, "tiny", rendered, 3)
        assert world.requests.asked[0].session == "trajectory-1"
    assert text_of(rendered) == "user: hi\nassistant: "


async def test_areal_reads_tokens_of_chats_and_aborts() -> None:
    async with serving(ROUTES, requests=Story()) as world:
        assert (await areal.chat(world.url, "tiny", "hi", 5)).check(5).tokens == ALPHABET[:5]
    for tokens in ([97], []):
        script: list[Piece | End] = [Piece(tokens, [-1.0], 3)] if tokens else []
        script.append(End("abort", ((3, 1),) if tokens else ()))
        async with serving(ROUTES, script) as world:
            rollout = await areal.rollout(world.url, "tiny", PROMPT, 9)
        assert (rollout.reason, rollout.tokens) == ("abort", tokens)


@pytest.mark.parametrize("vllm", [False, True])
async def test_areal_updates_weights_from_disk_in_both_flavours(vllm: bool) -> None:
    async with serving(ROUTES) as world:
        await areal.update_from_disk(world.url, "/weights/8", vllm)
        assert world.fleet.updates == [("/weights/8", None)]
        assert world.fleet.paused == ["abort", "resumed"]


async def test_trl_gets_the_reason_against_nccl_weights() -> None:
    async with serving(ROUTES) as world, world.client.get(f"{world.url}/get_world_size/") as response:
        assert response.status == 404
        assert "/update_weights_from_disk" in await response.text()


async def test_trl_package_gets_no_group_to_join() -> None:
    async with serving(ROUTES) as world:
        client = await asyncio.to_thread(trl_package.connected, world.url)
        with pytest.raises(RuntimeError, match="no weight-transfer engine"):
            await asyncio.to_thread(client.init_communicator)


async def test_trl_vllm_serve_client_generates_for_many_prompts() -> None:
    async with serving(ROUTES, requests=Story()) as world:
        assert await trl.is_up(world.url)
        of_tokens = await trl.generate(world.url, [[97], [98, 99]], 3, n=2, seed=5)
        of_texts = await trl.generate(world.url, ["a", "bc"], 3, stop="b")
        of_chats = await trl.chat(world.url, ["hi", "you"], 3)
        seeds = [ask.seed for ask in sorted(world.requests.asked[:4], key=lambda ask: ask.id)]
    assert [rollout.check(3).tokens for rollout in of_tokens] == [ALPHABET[:3]] * 4
    assert [rollout.tokens for rollout in of_texts] == [ALPHABET[:2]] * 2, (
        "the answer has the stop string's token"
    )
    assert [rollout.tokens for rollout in of_chats] == [ALPHABET[:3]] * 2
    assert seeds == [5, 6, 5, 6]


async def test_trl_package_generates_for_many_prompts() -> None:
    more = {"seed": 5}
    async with serving(ROUTES, requests=Story()) as world:
        of_tokens = await trl_package.generate(
            world.url, [[97], [98, 99]], 3, n=2, logprobs=0, generation_kwargs=more
        )
        of_texts = await trl_package.generate(world.url, ["a", "bc"], 3, generation_kwargs={"stop": "b"})
        of_chats = await trl_package.chat(world.url, ["hi", "you"], 3, n=2)
        asked = world.requests.asked
        seeds = [ask.seed for ask in sorted(asked[:4], key=lambda ask: ask.id)]
        prompts = {text_of(ask.prompt) for ask in asked[6:]}
    assert [rollout.check(3).tokens for rollout in of_tokens] == [ALPHABET[:3]] * 4
    assert [rollout.logprobs for rollout in of_tokens] == [[-0.125, -0.25, -0.375]] * 4
    assert [rollout.tokens for rollout in of_texts] == [ALPHABET[:2]] * 2, (
        "the answer has the stop string's token"
    )
    assert [rollout.tokens for rollout in of_chats] == [ALPHABET[:3]] * 4
    assert seeds == [5, 6, 5, 6]
    assert prompts == {"user: hi\nassistant: ", "user: you\nassistant: "}


def text_of(tokens: list[int]) -> str:
    return "".join(map(chr, tokens))


@pytest.mark.parametrize("name", ["miles", "slime", "slime-streamed"])
async def test_slime_reads_text_and_weight_version(name: str) -> None:
    async with serving(ROUTES, requests=Story()) as world:
        rollout = await everyone.OF_SGLANG[name](world.url, "tiny", PROMPT, 5)
        assert world.requests.asked[0].session == "session-1"
    assert (rollout.text, rollout.version) == ("abcde", "4")


async def test_slime_ends_a_round_by_repeated_aborts() -> None:
    """Its requests return with their tokens so far."""
    async with serving(ROUTES, requests=Story(pause_s=0.01)) as world:
        rollout = asyncio.create_task(slime.rollout(world.url, "tiny", PROMPT, 120))
        while not world.requests.asked:
            await asyncio.sleep(0.01)
        assert await slime.abort_all(world.url, every_s=0.05) == [world.url]
        ended = await rollout
    assert ended.reason == "abort"
    assert 0 <= len(ended.tokens) == len(ended.logprobs) < 120


async def test_miles_lists_workers_and_names_its_wanted_version() -> None:
    async with serving(ROUTES, requests=Story()) as world:
        assert await miles.workers(world.url) == [world.url]
        good = (await miles.gated(world.url, PROMPT, 5, min_version=3)).json()["meta_info"]
        assert (good["weight_version_start"], good["weight_version_end"]) == (3, 4)
    async with serving(ROUTES, [NotReady(9, True, 4, True)]) as world:
        refused = await miles.gated(world.url, PROMPT, 5, exact_version=9)
    assert (refused.status_code, refused.json()["type"]) == (409, "WeightVersionNotReady")


async def test_roll_aborts_its_request_and_reads_the_load() -> None:
    async with serving(ROUTES, requests=Story(pause_s=0.01)) as world:
        rollout = asyncio.create_task(roll.rollout(world.url, "tiny", PROMPT, 120, rid="one"))
        while not world.requests.asked:
            await asyncio.sleep(0.01)
        await roll.abort(world.url, "one")
        assert (await rollout).reason == "abort"
        assert await roll.load(world.url) == 0
