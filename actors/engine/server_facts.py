"""What a server says of itself before anybody gives it work: its kind, its room, its model.

Owns the reading of SGLang's `/server_info` and of vLLM's `/v1/models`, whichever answers. Adapter: HTTP. What
a server does not say is 0 or "".
"""

from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec

from actors.engine.engine_facts import EngineFacts

ANSWER_S = 10.0
MAX_BYTES = 4 << 20

T = TypeVar("T")


class NoServer(Exception):
    """Nobody there whom we know."""


class _State(msgspec.Struct):
    effective_max_running_requests_per_dp: int | None = None


class _SglangInfo(msgspec.Struct):
    model_path: str
    served_model_name: str | None = None
    tokenizer_path: str | None = None
    context_length: int | None = None
    max_running_requests: int | None = None
    max_req_input_len: int | None = None
    max_total_num_tokens: int | None = None
    enable_return_routed_experts: bool = False
    internal_states: list[_State] = []


class _Model(msgspec.Struct):
    vocab_size: int = 0


class _VllmModel(msgspec.Struct):
    id: str
    root: str | None = None
    max_model_len: int | None = None


class _VllmModels(msgspec.Struct):
    data: list[_VllmModel]


async def look(url: str, api_key: str = "") -> EngineFacts:
    """Ask the server at `url` ("http://host:port"). Raises NoServer, with what it answered."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    said: list[str] = []
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        for path in ("/server_info", "/get_server_info"):
            info = await _get(session, f"{url}{path}", _SglangInfo, said)
            if info is not None:
                return _of_sglang(info)
        models = await _get(session, f"{url}/v1/models", _VllmModels, said)
        if models is not None and models.data:
            return _of_vllm(models.data[0])
    raise NoServer(f"{url} is neither SGLang nor vLLM: {'; '.join(dict.fromkeys(said))}")


def _of_sglang(info: _SglangInfo) -> EngineFacts:
    states = [state.effective_max_running_requests_per_dp or 0 for state in info.internal_states]
    context = info.context_length or 0
    if info.max_req_input_len:
        context = min(context, info.max_req_input_len) if context else info.max_req_input_len
    return EngineFacts(
        kind="sglang",
        slots=sum(states) or info.max_running_requests or 0,
        context_tokens=context,
        model=info.served_model_name or info.model_path,
        tokenizer=_here(info.tokenizer_path or info.model_path),
        vocabulary=_vocabulary(info.model_path),
        routed_experts=info.enable_return_routed_experts,
    )


def _of_vllm(model: _VllmModel) -> EngineFacts:
    path = model.root or model.id
    return EngineFacts("vllm", 0, model.max_model_len or 0, model.id, _here(path), _vocabulary(path))


def _here(path: str) -> str:
    return path if (Path(path) / "tokenizer.json").is_file() else ""


def _vocabulary(path: str) -> int:
    try:
        return msgspec.json.decode((Path(path) / "config.json").read_bytes(), type=_Model).vocab_size
    except (OSError, msgspec.DecodeError):  # the folder is the server's, on another host
        return 0


async def _get(session: aiohttp.ClientSession, url: str, kind: type[T], said: list[str]) -> T | None:
    """The answer, or None with what was wrong in `said`."""
    try:
        async with session.get(url) as response:
            body = await response.content.read(MAX_BYTES)
            if response.status != 200:
                said.append(f"{response.url.path} answers {response.status}")
                return None
            return msgspec.json.decode(body, type=kind)
    except (aiohttp.ClientError, OSError) as problem:
        said.append(str(problem) or type(problem).__name__)
    except TimeoutError:
        said.append(f"no answer within {ANSWER_S:g} s")
    except (msgspec.DecodeError, msgspec.ValidationError) as problem:
        said.append(f"{url}: {problem}")
    return None
