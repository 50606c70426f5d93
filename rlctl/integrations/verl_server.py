"""GatewayServer: the gateway behind the methods that verl calls on its servers.

Owns the gate of admission (verl closes it around an update of weights), the requests under way and the
retries towards the gateway. verl wraps the class in a Ray actor; this module needs neither Ray nor verl.
Adapter: uses HTTP.
"""

import asyncio
from collections.abc import Mapping, Sequence

import aiohttp
import msgspec

from gleaner.rlctl.integrations.verl_translation import ABORTED, Ask, CannotAsk, Tokens, ask_of, tokens_of
from gleaner.transport.http_body import BodyTooLong, body_start, whole_body

AGAIN_STATUS = frozenset({429, 502, 503, 504})
AGAIN_S = 1.0
CONTROL_DEADLINE_S = 60.0
WEIGHTS_DEADLINE_S = 720.0
MAX_SAID = 500
"""Characters of a refusal that are shown."""
MAX_BODY_BYTES = 2 << 30
"""Size of an answer: the longest response, with the experts of each token in each layer."""


class GatewayRefused(RuntimeError):
    """The gateway refused; its text is in the message."""


class GatewayAway(TimeoutError):
    """The gateway did not serve the request in time; the last failure is in the message."""


class Gateway:
    """The routes of one gateway that verl needs.

    Args:
        url: as "http://host:port".
        api_key: sent as a bearer token; "" = none.
        deadline_s: of one request for tokens, retries included.
    """

    def __init__(self, url: str, api_key: str = "", *, deadline_s: float = 3600.0) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._deadline_s = deadline_s
        self._session: aiohttp.ClientSession | None = None

    async def generate(self, ask: Ask, known_steps: int | None) -> Tokens:
        """All tokens of one request. While the gateway is away the ask is repeated under the same rid, which
        makes no second generation. Raises GatewayRefused, GatewayAway and CannotRead."""
        return tokens_of(await self.post("/generate", ask, self._deadline_s), known_steps)

    async def abort(self, rid: str) -> None:
        """End one request; it answers with the tokens that it has."""
        await self.post("/abort_request", {"rid": rid}, CONTROL_DEADLINE_S)

    async def flush_cache(self) -> None:
        """Flush the prefix caches of the engines."""
        await self.post("/flush_cache", {}, CONTROL_DEADLINE_S)

    async def update_weights(self, folder: str, version: int | None) -> None:
        """Serve the checkpoint in a folder that the engines can read; returns when it is served."""
        body: dict[str, str] = {"model_path": folder}
        if version is not None:
            body["weight_version"] = str(version)
        await self.post("/update_weights_from_disk", body, WEIGHTS_DEADLINE_S)

    async def post(self, route: str, body: Ask | dict[str, str], deadline_s: float) -> bytes:
        """The body of the answer; retries where a retry may help. Raises GatewayRefused and GatewayAway."""
        last_answer = "nothing"
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    try:
                        async with self._open().post(
                            self._url + route, data=msgspec.json.encode(body), allow_redirects=False
                        ) as response:
                            if response.status == 200:
                                return await whole_body(response, MAX_BODY_BYTES)
                            reply_body = await body_start(response, MAX_SAID)
                            last_answer = f"{response.status}: {reply_body.decode(errors='replace')}"
                            if response.status not in AGAIN_STATUS:
                                raise GatewayRefused(f"{self._url}{route} answered {last_answer}")
                    except BodyTooLong as problem:
                        raise GatewayRefused(f"{self._url}: {problem}") from problem
                    except aiohttp.ClientError as problem:
                        last_answer = str(problem) or type(problem).__name__
                    await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            raise GatewayAway(
                f"{self._url}{route} did not serve in {deadline_s:.0f} s; last answer: {last_answer}"
            ) from None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={"Content-Type": "application/json", **self._headers},
                timeout=aiohttp.ClientTimeout(total=None),  # the deadline is that of the whole ask
                connector=aiohttp.TCPConnector(limit=0),  # verl bounds the requests under way
            )
        return self._session

    async def close(self) -> None:
        """Close the connections; the next ask opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class GatewayServer:
    """The methods that verl calls on a rollout server, in its names.

    Memory belongs to the engines: verl's calls to put it to sleep are accepted and change nothing, because
    these GPUs are not the trainer's.
    """

    def __init__(self, url: str, api_key: str, response_length: int, deadline_s: float) -> None:
        self._gateway = Gateway(url, api_key, deadline_s=deadline_s)
        self._response_length = response_length
        self._global_steps: int | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._rejects = False
        self._under_way: set[str] = set()

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, object],
        image_data: Sequence[object] | None = None,
        video_data: Sequence[object] | None = None,
        audio_data: Sequence[object] | None = None,
        mm_processor_kwargs: Mapping[str, object] | None = None,
        priority: int = 0,
    ) -> Tokens:
        """Tokens in, tokens out. Behind a closed gate the request waits, or returns at once as aborted."""
        if image_data or video_data or audio_data or mm_processor_kwargs:
            raise CannotAsk(f"{request_id}: the gateway takes token ids, no images, video or audio")
        ask = ask_of(request_id, prompt_ids, sampling_params, response_length=self._response_length)
        while not self._open.is_set():
            if self._rejects:
                return self._aborted()
            await self._open.wait()
        self._under_way.add(request_id)
        try:
            return await self._gateway.generate(ask, self._global_steps)
        finally:
            self._under_way.discard(request_id)

    def _aborted(self) -> Tokens:
        steps = self._global_steps
        return Tokens([], [], ABORTED, steps, steps, steps, 0)

    async def abort_all_requests(
        self, reset_prefix_cache: bool = True, reject_request: bool = False
    ) -> dict[str, int | list[str]]:
        """Close the gate and end the requests under way through this server, and no others."""
        self._open.clear()
        self._rejects = reject_request
        ended = sorted(self._under_way)
        await asyncio.gather(*(self._gateway.abort(rid) for rid in ended))
        return {"aborted_count": len(ended), "request_ids": ended}

    async def abort_request(self, request_id: str, reset_prefix_cache: bool = True) -> dict[str, str]:
        """End one request."""
        await self._gateway.abort(request_id)
        return {"request_id": request_id}

    async def resume_generation(self) -> None:
        """Open the gate."""
        self._rejects = False
        self._open.set()

    async def set_global_steps(self, global_steps: int) -> None:
        """The step in answers whose weights' version is not a number."""
        self._global_steps = global_steps

    async def clear_kv_cache(self) -> None:
        """Flush the prefix caches of the engines."""
        await self._gateway.flush_cache()

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """See the class."""

    async def sleep(self) -> None:
        """See the class."""

    async def release_kv_cache(self) -> None:
        """See the class."""

    async def resume_kv_cache(self) -> None:
        """See the class."""

    async def start_profile(self, **settings: object) -> None:
        """Does nothing: the engines are not this job's to profile."""

    async def stop_profile(self) -> None:
        """Does nothing, as above."""
