"""`VllmWire`: requests of `host` in the HTTP protocol of vLLM 0.3x.

Owns the translation, and the server's process if it is ours. Adapter.

- Log-probs: vLLM gives them before sampling parameters are applied, unless it runs with `--logprobs-mode
  processed_logprobs`: then they are of the distribution that was sampled from, of greedy requests under
  temperature 1, which is ours (`StepOutput.logprobs`). An external server is tested; if its log-probs are
  raw, requests for which that makes a difference are refused.
- Seeds: vLLM draws a stream of numbers from a seed. A request that is continued here draws from another one.
- Penalties of frequency and presence count the tokens that the server made itself, and grammars parse those.
  So both are refused for a request with a prefix.
- Ends: each request names the tokens that end a response of this model, and the server ignores all others.
- Weights: our weight transfer engine (`vllm_plugin`), if the server has it: its workers map the image in
  shared memory and feed the model's own loader. Otherwise a folder (`vllm_folders`).
- Caches of another version are never used: they are dropped, and each version has a salt of its own.
"""

from collections.abc import AsyncIterator

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
from gleaner.actors.engine.servers.supervised_server import Start, SupervisedServer
from gleaner.actors.engine.servers.vllm_folders import VllmFolders
from gleaner.actors.engine.servers.vllm_messages import (
    MADE_TOKENS,
    AbortRequests,
    CompletionChunk,
    FinishUpdate,
    InitTransfer,
    MadeTokens,
    Masked,
    Models,
    Nothing,
    WeightInfo,
    chunk_of,
    completion_of,
    loads_of,
    request_id,
    update_of,
)
from gleaner.actors.engine.servers.weight_update import WeightUpdate
from gleaner.actors.model.config import facts
from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.actors.protocol.weights import Fetched
from gleaner.actors.weights.image.reader_locks import in_file
from gleaner.actors.weights.image.safetensors_file import NotSafetensors

ORDER_S = 60.0  # for a pause or a release of memory, which waits for the current step
LOAD_S = 600.0  # to load weights; the caller has its own deadline
MASK_TOKEN = 1  # any word of any vocabulary
RAW_BELOW = -1e-3  # a log-prob of the only token that was allowed: 0 but for rounding, unless it is raw
PAUSE_MODES: dict[PauseMode, str] = {"abort": "abort", "retract": "keep", "in_place": "keep"}


class VllmWire:
    """A `ServerWire`.

    Args:
        url: of the server.
        start: starts it; None for an external server.
        api_key: of the server, "" for none.
    """

    def __init__(self, url: str, start: Start | None, api_key: str = "") -> None:
        self._http = HttpWire(url, api_key)
        self._server = SupervisedServer(self._http, start)
        self._folders = VllmFolders(self._http, self._server.folder)
        self._flip = WeightUpdate(self._load)
        self._by_image: bool | None = None
        self._tells_made = self._held = False
        self._model = self._folder = ""  # the last folder that it was given
        self._before: tuple[str, str] | None = None  # folder and version before the last commit of a folder
        self._eos: tuple[int, ...] | None = None
        self._salt = ""
        self._raw = False

    @property
    def pid(self) -> int | None:
        """Process id of a running server of ours."""
        return self._server.pid

    async def start(self, model: Fetched) -> None:
        """See `ServerWire`."""
        if model.tensors:
            await self._server.begin(model, weights=False)

    async def stage(self, fetched: Fetched) -> None:
        """See `ServerWire`."""
        self._flip.stage(fetched)
        if not fetched.tensors:
            return
        await self._server.begin(fetched, weights=False)  # the weights arrive over HTTP
        try:
            if self._by_image is None:
                self._by_image = await self._has_our_engine()
                self._tells_made = self._by_image and await self._has_our_route()
            if not self._by_image:
                await self._folders.stage(fetched)
        except ServerRefused as refused:
            raise ServerDied(f"{self._http.url} takes no weights: {refused}") from refused
        except OSError as problem:
            raise LoadFailed(f"version {fetched.version} was not staged: {problem}") from problem

    async def commit(self) -> str:
        """See `ServerWire`."""
        fetched = self._flip.staged
        self._before = None
        try:
            await self._find_model()
            if not fetched.tensors:
                self._flip.forget()
                return await self._serve_folder(fetched.path, str(fetched.version))
            return await self._commit(fetched)
        except ServerRefused as refused:
            raise ServerDied(f"the server did not load version {fetched.version}: {refused}") from refused

    async def _commit(self, fetched: Fetched) -> str:
        if held := self._held:
            await self._flip.commit()
        else:
            await self.pause("abort")  # caches are dropped too
            try:
                await self._flip.commit()
            finally:
                await self.go_on()
        name = version_name(fetched)
        if (serves := await self.version()) != name:
            raise ServerDied(f"the server reports that it serves {serves!r} after it was given {name!r}")
        self._eos, self._salt = facts(fetched.model_config).eos_token_ids, name
        if not held:
            self._raw = await self._gives_raw_logprobs()
        return name

    async def _load(self, fetched: Fetched) -> None:
        """The load of a `WeightUpdate`."""
        name = version_name(fetched)
        if self._by_image:
            try:
                placed = in_file(fetched.path, fetched.tensors)
            except (OSError, NotSafetensors) as problem:
                raise ServerRefused(str(problem), never=False) from problem
            await self._http.tell("/start_weight_update", Nothing(), LOAD_S)
            await self._http.tell("/update_weights", update_of(fetched.path, placed), LOAD_S)
            await self._http.tell("/finish_weight_update", FinishUpdate(name), LOAD_S)
        else:
            await self._folders.load_version(fetched, name)

    async def _serve_folder(self, path: str, name: str) -> str:
        """Load a checkpoint that the server reads by itself; "": the one that it serves already, under any
        name.
        """
        try:
            serves = await self.version()
        except ServerRefused:  # a server without the routes for weights never changes them
            serves = ""
        if path and (serves, self._folder or path) != (name, path):
            await self.pause("abort")
            try:
                await self._folders.replace(self._folder, path, name)
            finally:
                await self.go_on()
            self._before = (self._folder, serves)
            self._folder, serves = path, await self.version()
        self._eos, self._salt = None, f"{name}-{serves}"
        self._raw = await self._gives_raw_logprobs()
        return serves

    async def revert(self) -> str | None:
        """See `ServerWire`."""
        before, self._before = self._before, None
        if before is None:
            return None
        folder, name = before
        try:
            await self.pause("abort")
            try:
                await self._folders.reload(folder)
            finally:
                await self.go_on()
            await self._folders.announce(name)
        except ServerRefused as refused:
            raise ServerDied(f"the server did not load what it served before: {refused}") from refused
        self._folder, self._salt = folder, f"reverted-{name}"
        return name

    async def _find_model(self) -> None:
        if not self._model:
            models = await self._http.get("/v1/models", Models)
            if not models.data:
                raise ServerDied(f"{self._http.url} serves no model")
            self._model = models.data[0].id

    async def stream(self, ask: Ask) -> AsyncIterator[Chunk]:
        """See `ServerWire`."""
        if ask.experts:
            raise ServerRefused("vLLM's streams have no experts: serve this model with SGLang", never=True)
        if ask.scores is not None:
            raise ServerRefused(
                "top_logprobs, echo with logprobs: not offered in front of vLLM, have SGLang serve the model",
                never=True,
            )
        if self._raw and (cut := _shapes(ask)):
            raise ServerRefused(
                f"{self._http.url} gives log-probs without {cut}, which this request has: start it with "
                "--logprobs-mode processed_logprobs",
                never=True,
            )
        body = completion_of(ask, self._model, self._salt, self._eos)
        try:
            async for events in self._http.events("/v1/completions", body):
                for event in events:
                    if (chunk := chunk_of(event)) is not None:
                        yield chunk
        except ServerDied as died:
            raise self._server.cause(died) from died

    async def abort(self, rids: list[str]) -> None:
        """See `ServerWire`. Their streams are closed, which ends them too where the route is not open."""
        try:
            await self._http.tell("/abort_requests", AbortRequests([request_id(rid) for rid in rids]))
        except ServerRefused as refused:
            if not refused.never:
                raise ServerDied(f"/abort_requests: {refused}") from refused

    async def healthy(self) -> None:
        """See `ServerWire`: vLLM's front end answers, and reports that its engine has not ended."""
        self._server.look()
        try:
            await self._http.look("/health")
        except ServerDied as died:
            raise self._server.cause(died) from died
        except ServerRefused as refused:
            raise ServerDied(f"the server reports that it is unhealthy: {refused}") from refused

    async def loads(self) -> Loads:
        """See `ServerWire`."""
        return loads_of(await self._http.text("/metrics"))

    async def version(self) -> str:
        """See `ServerWire`."""
        return (await self._http.get("/weight_info", WeightInfo)).weight_version

    async def pause(self, mode: PauseMode) -> None:
        """See `ServerWire`."""
        await self._http.tell(f"/pause?mode={PAUSE_MODES[mode]}", Nothing(), ORDER_S)
        if mode == "retract":
            await self._http.tell("/reset_prefix_cache?reset_running_requests=true", Nothing(), ORDER_S)

    @property
    def keeps(self) -> bool:
        """See `ServerWire`: with the route of `vllm_plugin`."""
        return self._tells_made

    async def hold(self, rids: list[str]) -> dict[str, int]:
        """See `ServerWire`. Requests in the queue are held too, with 0 tokens."""
        self._held = True
        await self.pause("retract")
        reply = await self._http.get(MADE_TOKENS, MadeTokens, ORDER_S)
        if not reply.paused:
            raise ServerRefused(f"{self._http.url} still generates although it was paused", never=False)
        names = {request_id(rid): rid for rid in rids}
        return {names[name]: made for name, made in reply.made.items() if name in names}

    async def go_on(self) -> None:
        """See `ServerWire`."""
        self._held = False
        await self._http.tell("/resume", Nothing(), ORDER_S)

    async def sleep(self) -> None:
        """See `ServerWire`. On a CPU, or without `--enable-sleep-mode`, vLLM reports success and keeps
        all.
        """
        await self._http.tell("/sleep?level=2", Nothing(), ORDER_S)

    async def wake(self) -> None:
        """See `ServerWire`."""
        await self._http.tell("/wake_up", Nothing(), ORDER_S)

    def close(self) -> None:
        """See `ServerWire`."""
        self._server.close()

    async def disconnect(self) -> None:
        """See `ServerWire`."""
        await self._server.disconnect()
        self._flip.close()

    async def _has_our_engine(self) -> bool:
        """Whether it has our weight transfer engine. Raises `ServerDied` if it takes no weights."""
        try:
            await self._http.tell("/init_weight_transfer_engine", InitTransfer(), ORDER_S)
        except ServerRefused as refused:
            if refused.never:
                raise ServerDied(
                    f"{self._http.url} has no routes for weights: start it with VLLM_SERVER_DEV_MODE=1"
                ) from refused
            return False
        return True

    async def _has_our_route(self) -> bool:
        """Whether it has the route for the number of tokens made of a request."""
        try:
            await self._http.get(MADE_TOKENS, MadeTokens, ORDER_S)
        except ServerRefused:
            return False
        return True

    async def _gives_raw_logprobs(self) -> bool:
        body = Masked(model=self._model, prompt=[MASK_TOKEN], allowed_token_ids=[MASK_TOKEN])
        chunk = await self._http.post("/v1/completions", body, CompletionChunk, ORDER_S)
        given = chunk.choices[0].logprobs if chunk.choices else None
        if given is None or not given.token_logprobs or given.token_logprobs[0] is None:
            raise ServerDied(f"{self._http.url} gave no log-prob of a token")
        return given.token_logprobs[0] < RAW_BELOW


def _shapes(ask: Ask) -> str:
    """The settings that change a request's distribution from the model's, or ""."""
    plain, asked = Sampling(), ask.sampling
    if ask.temperature not in (0.0, 1.0):
        return "its temperature"
    for name in (
        "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
        "logit_bias", "grammar",
    ):  # fmt: skip
        if getattr(asked, name) != getattr(plain, name):
            return name
    return "min_new_tokens" if asked.min_new_tokens > ask.made else ""
