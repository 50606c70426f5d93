"""Facts of an inference server before its first work (kind, release, model).

Owns the reading of SGLang's `/server_info` and `/model_info` and of vLLM's `/v1/models` and `/version`, and
the verdict which of the two it is. A server counts as vLLM only if it replies that it has no `/server_info`
like SGLang's. A missing or partial reply is no evidence of its kind. Adapter: HTTP. A fact that a server does
not give is 0 or "".
"""

import asyncio
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec

from gleaner.actors.engine.servers.foreign_facts import EngineFacts
from gleaner.transport.http_body import BodyTooLong, whole_body

ANSWER_S = 10.0  # for all requests to one server
MAX_BYTES = 4 << 20
MAX_SAID = 200  # bytes of an answer that go into an error
NOT_SERVED = {400, 404, 405, 501}
"""Statuses of a route that a server does not have."""

T = TypeVar("T")


class NoServer(Exception):
    """No server of a known kind answers there."""


class _State(msgspec.Struct):
    effective_max_running_requests_per_dp: int | None = None


class _SglangInfo(msgspec.Struct):
    model_path: str
    served_model_name: str | None = None
    tokenizer_path: str | None = None
    context_length: int | None = None
    max_running_requests: int | None = None
    max_req_input_len: int | None = None
    enable_return_routed_experts: bool = False
    internal_states: list[_State] = []
    version: str = ""
    engine: str = "SGLang"


class _ModelInfo(msgspec.Struct):
    """vocab_size: the builtin engine's alone."""

    architectures: list[str] | None = None
    vocab_size: int | None = None


class _Model(msgspec.Struct):
    """`config.json` of a model's folder."""

    vocab_size: int = 0
    architectures: list[str] = []


class _VllmModel(msgspec.Struct):
    id: str
    root: str | None = None
    max_model_len: int | None = None
    owned_by: str = "vllm"


class _VllmModels(msgspec.Struct):
    data: list[_VllmModel]


class _Version(msgspec.Struct):
    version: str


async def look(url: str, api_key: str = "") -> EngineFacts:
    """Ask the server at `url` ("http://host:port"). Raises NoServer, with its reply."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        async with (
            asyncio.timeout(ANSWER_S),
            aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None)) as session,
        ):
            return await _look(_Server(session, url))
    except TimeoutError as late:
        raise NoServer(f"{url} did not answer within {ANSWER_S:g} s") from late
    except BodyTooLong as problem:
        raise NoServer(f"{url}: {problem}") from problem
    except (aiohttp.ClientError, OSError) as problem:
        raise NoServer(f"{url}: {str(problem) or type(problem).__name__}") from problem


class _Server:
    """One server, and its reply that was not understood."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self.url = session, url
        self.notes: list[str] = []

    async def get(self, path: str, kind: type[T]) -> T | None:
        """None: it has no such route. Raises NoServer if it may have it, and errors of aiohttp."""
        async with self._session.get(f"{self.url}{path}", allow_redirects=False) as response:
            body = await whole_body(response, MAX_BYTES)
        if response.status in NOT_SERVED:
            self.notes.append(f"{path} answers {response.status}")
            return None
        if response.status != 200:
            raise NoServer(
                f"{self.url}{path} answers {response.status}: {body[:MAX_SAID].decode(errors='replace')}"
            )
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as problem:  # JSON of another server
            self.notes.append(f"{path}: {problem}")
            return None
        except msgspec.DecodeError as problem:
            raise NoServer(
                f"{self.url}{path} answers {len(body)} bytes that are no JSON: {problem}"
            ) from problem


async def _look(server: _Server) -> EngineFacts:
    for path in ("/server_info", "/get_server_info"):
        info = await server.get(path, _SglangInfo)
        if info is not None:
            model = await server.get("/model_info", _ModelInfo)
            return _of_sglang(info, model or _ModelInfo())
    models = await server.get("/v1/models", _VllmModels)
    if models is not None and models.data and models.data[0].owned_by == "vllm":
        version = await server.get("/version", _Version)
        return _of_vllm(models.data[0], "" if version is None else version.version)
    if models is not None:
        owner = repr(models.data[0].owned_by) if models.data else "no model"
        server.notes.append(f"/v1/models names {owner}")
    raise NoServer(f"{server.url} is neither SGLang nor vLLM: {'; '.join(server.notes)}")


def _of_sglang(info: _SglangInfo, model: _ModelInfo) -> EngineFacts:
    states = [state.effective_max_running_requests_per_dp or 0 for state in info.internal_states]
    context, longest = info.context_length or 0, info.max_req_input_len or 0
    here = _config(info.model_path)
    return EngineFacts(
        kind="sglang",
        slots=sum(states) or info.max_running_requests or 0,
        context_tokens=context or longest,
        model=info.served_model_name or info.model_path,
        tokenizer=_here(info.tokenizer_path or info.model_path),
        vocabulary=model.vocab_size or here.vocab_size,
        routed_experts=info.enable_return_routed_experts,
        release=f"{info.engine} {info.version}".strip(),
        root=info.model_path,
        architecture=_first(model.architectures or here.architectures),
        room_tokens=min(context, longest) if context and longest else context or longest,
    )


def _of_vllm(model: _VllmModel, version: str) -> EngineFacts:
    path = model.root or model.id
    here, context = _config(path), model.max_model_len or 0
    return EngineFacts(
        kind="vllm",
        slots=0,
        context_tokens=context,
        model=model.id,
        tokenizer=_here(path),
        vocabulary=here.vocab_size,
        release=f"vLLM {version}".strip(),
        root=path,
        architecture=_first(here.architectures),
        room_tokens=context,
    )


def _here(path: str) -> str:
    return path if (Path(path) / "tokenizer.json").is_file() else ""


def _config(path: str) -> _Model:
    try:
        return msgspec.json.decode((Path(path) / "config.json").read_bytes(), type=_Model)
    except (OSError, msgspec.DecodeError):  # the folder is the server's, on another host
        return _Model()


def _first(architectures: list[str]) -> str:
    return architectures[0] if architectures else ""
