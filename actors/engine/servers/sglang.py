"""`SglangWire`: requests of `host` in the HTTP protocol of SGLang 0.5.

Owns the translation, and the server's process if it is ours. Adapter.

- Log-probs: SGLang's `output_token_logprobs` are of the distribution with the temperature applied, of greedy
  requests under temperature 1: ours (`StepOutput.logprobs`). They are taken before top_p, top_k and min_p cut
  it. With `SGLANG_RETURN_ORIGINAL_LOGPROB` a server leaves the temperature out. Ours never have it. An
  external server is tested for it, and then gets no requests with temperatures for which that matters.
- Penalties of frequency and presence count the tokens that the server made itself, and grammars parse those.
  So both are refused for a request with a prefix.
- Weights: `sglang_weights`, while nothing executes.
"""

import os
import uuid
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from gleaner.actors.engine.images.checkpoint_folder import version_name
from gleaner.actors.engine.servers.http import HttpWire
from gleaner.actors.engine.servers.port import (
    Ask,
    Chunk,
    LoadFailed,
    Loads,
    PauseMode,
    ServerDied,
    ServerRefused,
)
from gleaner.actors.engine.servers.sglang_events import meta_of, new_of
from gleaner.actors.engine.servers.sglang_messages import (
    AbortRequest,
    Continue,
    EmptyBody,
    Generate,
    LoadsAre,
    MadeTokens,
    ModelInfo,
    Pause,
    SamplingParams,
    ServerInfo,
)
from gleaner.actors.engine.servers.sglang_scores import ScoreReading
from gleaner.actors.engine.servers.sglang_weights import SglangWeights
from gleaner.actors.engine.servers.supervised_server import Start, SupervisedServer
from gleaner.actors.engine.servers.weight_update import WeightUpdate
from gleaner.actors.protocol.sampling_params import CANNOT_CONTINUE, Sampling
from gleaner.actors.protocol.weights import Fetched

ORDER_S = 60.0  # for a pause or a release of memory, which waits for the current step
HEALTH_S = 30.0  # of `/health`, which gives up after 20 s itself

PROBE_TOKEN, PROBE_TOKENS = 1, 4
COLD = 1e-4  # a temperature at which the likeliest token is certain; SGLang takes less than 1e-6 for greedy
CERTAIN = -0.05


class SglangWire:
    """A `ServerWire`.

    Args:
        url: of the server.
        start: starts it; None for an external server.
        api_key: of the server, "" for none.
        early: `start` starts it without weights too, where its folder has none.
    """

    def __init__(self, url: str, start: Start | None, api_key: str = "", *, early: bool = False) -> None:
        self._early = early
        self._http = HttpWire(url, api_key)
        self._server = SupervisedServer(self._http, start, HEALTH_S)
        self._weights = SglangWeights(self._http, self._server.folder)
        self._flip = WeightUpdate(self._load)
        self._begun = False  # it was started on the staged weights
        self._cumulative: bool | None = None
        self._told_where = False  # the server accepts `response_start`
        self._routed = False  # it reports the experts of tokens
        self._untempered: bool | None = None  # not known yet
        self._tells_made = self._held = False
        self._capacity = 0, 0
        self._serves: ModelInfo | None = None  # since the last commit
        self._before: ModelInfo | None = None  # the last commit, if it was of a folder

    def capacity(self) -> tuple[int, int]:
        """Tokens in the cache of one copy of the model, and the size of its weights in such tokens; 0: the
        server does not run yet, or does not report it."""
        return self._capacity

    @property
    def pid(self) -> int | None:
        """Process id of a running server of ours."""
        return self._server.pid

    async def start(self, model: Fetched) -> None:
        """See `ServerWire`: with meaningless weights (`--load-format dummy`)."""
        if model.tensors and self._early:
            await self._server.begin(model, weights=False)

    async def stage(self, fetched: Fetched) -> None:
        """See `ServerWire`."""
        self._flip.stage(fetched)
        self._begun = bool(fetched.tensors) and await self._server.begin(fetched, weights=True)
        if self._cumulative is None:
            info = await self._http.get("/server_info", ServerInfo)
            self._cumulative = not info.incremental_streaming_output
            self._told_where = info.response_start
            self._routed = info.enable_return_routed_experts
            self._tells_made = held_of(info) is not None
            self._capacity = capacity_of(info)
            self._weights.look(info)
        if self._begun:
            self._flip.began()
            self._server.folder.forget(fetched)
        elif fetched.tensors:
            await self._weights.stage(fetched)

    async def commit(self) -> str:
        """See `ServerWire`."""
        self._serves = self._before = None
        fetched = self._flip.staged
        if fetched.tensors:
            name = version_name(fetched)
            if not self._begun:
                await self._paused(self._flip.commit)
            if (serves := await self.version()) != name:
                raise ServerDied(f"the server reports that it serves {serves!r} after it was given {name!r}")
        else:
            name = await self._serve_folder(fetched.path, str(fetched.version))
        if self._untempered is None:
            self._untempered = not self._server.ours and await self._leaves_temperature_out()
        self._serves = await self._http.get("/model_info", ModelInfo)
        return name

    async def _serve_folder(self, path: str, name: str) -> str:
        """Load a checkpoint that the server reads by itself; "": the one that it serves already. Raises
        `LoadFailed` if it has its previous weights."""
        before = await self._http.get("/model_info", ModelInfo)
        if not path or (before.model_path, before.weight_version) == (path, name):
            return before.weight_version
        self._flip.forget()
        await self._paused(lambda: self._load_folder(path, name, before))
        self._before = before
        return await self.version()

    async def revert(self) -> str | None:
        """See `ServerWire`."""
        before, self._before = self._before, None
        if before is None:
            return None
        self._serves = None
        try:
            await self._paused(lambda: self._weights.load_folder(before.model_path, before.weight_version))
        except ServerRefused as refused:
            raise ServerDied(f"the server did not load {before.model_path} again: {refused}") from refused
        self._serves = await self._http.get("/model_info", ModelInfo)
        return self._serves.weight_version

    async def _load_folder(self, path: str, name: str, before: ModelInfo) -> None:
        """Load a folder into the paused server. A server that refuses may have loaded a part, so it loads its
        previous weights again.
        """
        try:
            await self._weights.load_folder(path, name)
        except ServerRefused as refused:
            why = f"the server did not load {path}: {refused}"
            try:
                await self._weights.load_folder(before.model_path, before.weight_version)
            except ServerRefused as again:
                raise ServerDied(f"{why}; nor {before.model_path}, which it served: {again}") from again
            raise LoadFailed(why) from refused

    async def _load(self, fetched: Fetched) -> None:
        await self._weights.load(fetched, version_name(fetched))

    async def _paused(self, load: Callable[[], Awaitable[None]]) -> None:
        """Other clients' requests, if there are any, wait and go on under the new weights."""
        if self._held:
            await load()
            return
        await self.pause("retract")
        try:
            await load()
        finally:
            await self.go_on()

    async def stream(self, ask: Ask) -> AsyncIterator[Chunk]:
        """See `ServerWire`."""
        if self._untempered and ask.temperature not in (0.0, 1.0):
            raise ServerRefused(
                "the server runs with SGLANG_RETURN_ORIGINAL_LOGPROB: its log-probs are not those of the "
                f"distribution that it samples from at temperature {ask.temperature:g}",
                never=True,
            )
        if ask.experts and not self._routed:
            raise ServerRefused(
                f"{self._http.url} has no experts: start it with --enable-return-routed-experts",
                never=True,
            )
        rid, tokens, params = ask.rid, ask.tokens.tolist(), sampling_params(ask)
        routed = True if ask.experts else msgspec.UNSET
        body = Generate(rid=rid, input_ids=tokens, sampling_params=params, return_routed_experts=routed)
        if ask.made and self._told_where:
            start = len(tokens) - ask.made
            body = Continue(rid=rid, input_ids=tokens, sampling_params=params, response_start=start)
        scoring = None
        if ask.scores is not None:
            scoring = ScoreReading(ask, ask.scores)
            top, start = ask.scores.top, scoring.first
            body = msgspec.structs.replace(body, top_logprobs_num=top, logprob_start_len=start)
        seen = 0
        try:
            async for events in self._http.events("/generate", body):
                # Each event of a cumulative stream holds those before it: the newest is all there is to read.
                for event in events[-1:] if self._cumulative else events:
                    meta = meta_of(event)
                    chunk = new_of(meta, seen)
                    if scoring is not None:
                        chunk = scoring.read(meta, chunk, seen)
                    seen += len(chunk.tokens)
                    if chunk.tokens or chunk.finish:
                        yield chunk
        except ServerDied as died:
            raise self._server.cause(died) from died

    async def abort(self, rids: list[str]) -> None:
        """See `ServerWire`."""
        for rid in rids:
            await self._http.tell("/abort_request", AbortRequest(rid=rid))

    async def healthy(self) -> None:
        """See `ServerWire`: the server's process answers. Its streams show whether tokens arrive. SGLang's
        own `/health` makes a token, takes a second at least, and waits behind executing requests. The served
        weights must be those of the last commit; otherwise the server was replaced, or another client loads
        weights."""
        self._server.look()
        before = self._serves
        try:
            serves = await self._http.get("/model_info", ModelInfo)
        except ServerDied as died:
            raise self._server.cause(died) from died
        except ServerRefused as refused:
            raise ServerDied(f"the server does not report what it serves: {refused}") from refused
        if before is not None and before is self._serves and serves != before:
            raise ServerDied(
                f"{self._http.url} serves {serves.model_path} as {serves.weight_version!r} now, and served "
                f"{before.model_path} as {before.weight_version!r}: it was replaced, or another client "
                "loads weights into it"
            )

    async def loads(self) -> Loads:
        """See `ServerWire`."""
        reports = (await self._http.get("/v1/loads?include=core", LoadsAre)).loads
        return Loads(
            sum(one.num_running_reqs for one in reports), sum(one.num_waiting_reqs for one in reports)
        )

    async def version(self) -> str:
        """See `ServerWire`."""
        return (await self._http.get("/model_info", ModelInfo)).weight_version

    async def pause(self, mode: PauseMode) -> None:
        """See `ServerWire`."""
        await self._http.tell("/pause_generation", Pause(mode=mode), ORDER_S)

    @property
    def keeps(self) -> bool:
        """See `ServerWire`: with the hooks of `sglang_plugin`, in a server of one scheduler."""
        return self._tells_made

    async def hold(self, rids: list[str]) -> dict[str, int]:
        """See `ServerWire`. Requests in the queue are held too, with 0 tokens."""
        self._held = True
        await self.pause("retract")
        held = held_of(await self._http.get("/server_info", ServerInfo, ORDER_S))
        if held is None or not held.paused:
            raise ServerRefused(f"{self._http.url} still generates although it was paused", never=False)
        return {rid: held.made[rid] for rid in rids if rid in held.made}

    async def go_on(self) -> None:
        """See `ServerWire`."""
        self._held = False
        await self._http.tell("/continue_generation", EmptyBody(), ORDER_S)

    async def sleep(self) -> None:
        """See `ServerWire`. Without `--enable-memory-saver` the server reports success and keeps its
        memory.
        """
        await self._http.tell("/release_memory_occupation", EmptyBody(), ORDER_S)

    async def wake(self) -> None:
        """See `ServerWire`."""
        await self._http.tell("/resume_memory_occupation", EmptyBody(), ORDER_S)

    def close(self) -> None:
        """See `ServerWire`."""
        self._server.close()

    async def disconnect(self) -> None:
        """See `ServerWire`."""
        await self._server.disconnect()
        self._flip.close()

    async def _leaves_temperature_out(self) -> bool:
        """Whether log-probs are those before the temperature; the temperature is so near to 0 that only one
        token is possible.
        """
        asked = Sampling(ignore_eos=True)
        rid = f"temperature-{uuid.uuid4().hex}"
        ask = Ask(rid, array("I", [PROBE_TOKEN]), PROBE_TOKENS, COLD, 0, sampling=asked)
        logprobs = [logprob async for chunk in self.stream(ask) for logprob in chunk.logprobs]
        return sum(logprob < CERTAIN for logprob in logprobs) > 1  # one pair of tokens may be as likely


def held_of(info: ServerInfo) -> MadeTokens | None:
    """The report of our plugin in a server; None without the plugin, or if several schedulers share
    requests.
    """
    return info.internal_states[0].gleaner if len(info.internal_states) == 1 else None


def capacity_of(info: ServerInfo) -> tuple[int, int]:
    """See `SglangWire.capacity`; both are of the first copy, and the others are alike."""
    usage = info.internal_states[0].memory_usage if info.internal_states else None
    if usage is None or usage.kvcache <= 0:
        return 0, 0
    return usage.token_capacity, round(usage.weight / usage.kvcache * usage.token_capacity)


def sampling_params(ask: Ask) -> SamplingParams:
    """The sampling parameters for SGLang. Raises `ServerRefused` for settings that it would apply in another
    way.
    """
    asked = ask.sampling
    if ask.made and not asked.continues:
        what = "grammars see" if asked.grammar is not None else "penalties of frequency and presence count"
        why = f"SGLang's {what} only what one server made, and {CANNOT_CONTINUE}"
        raise ServerRefused(why, never=True)
    grammar = {} if asked.grammar is None else {asked.grammar.kind: asked.grammar.text}
    return SamplingParams(
        max_new_tokens=ask.max_new_tokens,
        temperature=ask.temperature,
        sampling_seed=ask.seed & (1 << 63) - 1,
        top_p=asked.top_p,
        top_k=asked.top_k,
        min_p=asked.min_p,
        frequency_penalty=asked.frequency_penalty,
        presence_penalty=asked.presence_penalty,
        repetition_penalty=asked.repetition_penalty,
        min_new_tokens=max(0, asked.min_new_tokens - ask.made),
        ignore_eos=asked.ignore_eos,
        stop_token_ids=asked.stop_token_ids or None,
        stream_interval=ask.interval if ask.interval > 1 else None,
        logit_bias={str(token): bias for token, bias in asked.logit_bias} or None,
        json_schema=grammar.get("json_schema"),
        regex=grammar.get("regex"),
        ebnf=grammar.get("ebnf"),
        structural_tag=grammar.get("structural_tag"),
    )


def environment() -> dict[str, str]:
    """The environment of a server of ours: no network, log-probs with the temperature applied."""
    kept = {"SGLANG_RETURN_ORIGINAL_LOGPROB": "0"}
    if "HF_HUB_OFFLINE" not in os.environ:
        kept |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return kept
