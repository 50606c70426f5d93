"""`VllmFolders`: weights of a vLLM server from folders in the Hugging Face format, by `reload_weights`.

Owns the messages for them. The caller pauses the server meanwhile. Adapter.
"""

import asyncio

from gleaner.actors.engine.images.checkpoint_folder import ServedFolder
from gleaner.actors.engine.servers.http import HttpWire
from gleaner.actors.engine.servers.port import LoadFailed, ServerDied, ServerRefused
from gleaner.actors.engine.servers.vllm_messages import CollectiveRpc, NewVersion, Reload, ServerInfo
from gleaner.actors.model.config import facts
from gleaner.actors.protocol.weights import Fetched

ORDER_S = 60.0  # for a question to the server
LOAD_S = 600.0  # to load weights; the caller has its own deadline


class VllmFolders:
    """See the module docstring. `written`: the folder that versions are written to."""

    def __init__(self, http: HttpWire, written: ServedFolder) -> None:
        self._http, self._written = http, written

    async def stage(self, fetched: Fetched) -> None:
        """Write a version for vLLM's own checkpoint reader. On a CPU vLLM 0.32 keeps using the old output
        matrix if that is the embedding, because it packed a copy: raises `ServerDied` there. Raises
        `OSError`."""
        if facts(fetched.model_config).tied:
            info = await self._http.get("/server_info?config_format=text", ServerInfo, ORDER_S)
            if "device_config=cpu" in info.vllm_config:
                raise ServerDied(
                    f"{self._http.url} runs on a CPU, where vLLM does not renew a tied output matrix: "
                    "install actors/engine/vllm_plugin and start it with "
                    """--weight-transfer-config '{"backend": "gleaner"}'"""
                )
        await asyncio.to_thread(self._written.write, fetched)

    async def load_version(self, fetched: Fetched, name: str) -> None:
        """Load a version under this name. Raises `ServerRefused`."""
        try:
            folder = await asyncio.to_thread(self._written.write, fetched)
            await self.reload(str(folder))
            await self.announce(name)
        except OSError as problem:
            raise ServerRefused(str(problem), never=False) from problem
        finally:
            self._written.forget(fetched)

    async def replace(self, served: str, folder: str, name: str) -> None:
        """Load another folder than the served one. A server that refuses may have loaded a part, so it loads
        its previous weights again. Raises `LoadFailed` then."""
        try:
            await self.reload(folder)
        except ServerRefused as refused:
            why = f"the server did not load {folder}: {refused}"
            try:
                await self.reload(served)
            except ServerRefused as again:
                raise ServerDied(f"{why}; nor what it served before: {again}") from again
            raise LoadFailed(why) from refused
        await self.announce(name)

    async def reload(self, folder: str) -> None:
        """Load this folder; "": the model that the server was started with. Raises `ServerRefused`."""
        message = Reload(folder) if folder else Reload()
        await self._http.tell("/collective_rpc", CollectiveRpc(message), LOAD_S)

    async def announce(self, name: str) -> None:
        """Have the server report this version from now on."""
        await self._http.tell("/update_weight_version", NewVersion(name))
