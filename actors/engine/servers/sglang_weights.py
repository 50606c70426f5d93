"""`SglangWeights`: loads a verified image in shared memory into an SGLang server.

Image and server are on the same host.

Owns the two routes and which of them a server has. Adapter: HTTP, files.

- By our loader (`sglang_plugin`), where the server was started with it and has a session for weights: each
  rank maps the image and feeds the model's own loader. Nothing is copied on the way.
- From a folder (`images.checkpoint_folder`), by `/update_weights_from_disk`: a copy within the kernel, then
  SGLang's own reading of a checkpoint.

Not used: `/update_weights_from_tensor` with the tensors themselves, which sends all bytes through JSON and is
the slowest of the three (docs/engines.md); `/update_weights_from_ipc`, whose handles are CUDA's;
`/update_weights_from_distributed`, a collective that a late joiner cannot join.
"""

import asyncio
from pathlib import Path

from gleaner.actors.engine.images.checkpoint_folder import ServedFolder
from gleaner.actors.engine.servers.http import HttpWire
from gleaner.actors.engine.servers.port import LoadFailed, ServerDied, ServerRefused
from gleaner.actors.engine.servers.sglang_messages import (
    EmptyBody,
    ServerInfo,
    Updated,
    UpdateWeightsFromDisk,
    UpdateWeightsFromTensor,
    only_a_name,
)
from gleaner.actors.protocol.weights import Fetched

LOADER = "gleaner_sglang.load_image"
PLUGIN = Path(__file__).parent.with_name("sglang_plugin")
LOAD_S = 600.0  # to load weights; the caller has its own deadline
REPORT_S = 30.0  # for the slowest rank after the first reply
LOOK_S = 0.05
NO_ROUTE = 404


class SglangWeights:
    """Loads weights into one server. `folder`: of this server."""

    def __init__(self, http: HttpWire, folder: ServedFolder) -> None:
        self._http, self._folder = http, folder
        self._by_image = False
        self._ranks = 1

    def look(self, info: ServerInfo) -> None:
        """Determine the route of the server, from its own information."""
        self._ranks = info.tp_size * info.pp_size
        self._by_image = LOADER in (info.custom_weight_loader or ()) and info.dp_size == 1

    async def stage(self, fetched: Fetched) -> None:
        """Prepare as much as possible before the server is paused. Raises `LoadFailed`."""
        try:
            if not self._by_image:
                await asyncio.to_thread(self._folder.write, fetched)
        except (OSError, ValueError) as problem:
            raise LoadFailed(f"version {fetched.version} was not staged: {problem}") from problem

    async def load(self, fetched: Fetched, name: str) -> None:
        """Have the paused server load it. Raises `ServerRefused`, `ServerDied`."""
        try:
            if not self._by_image or not await self._load_image(fetched, name):
                await self._load_folder(await asyncio.to_thread(self._folder.write, fetched), name)
        except (OSError, ValueError) as problem:
            raise ServerRefused(str(problem), never=False) from problem
        finally:
            self._folder.forget(fetched)

    async def load_folder(self, path: str, name: str) -> None:
        """Have the paused server load an external checkpoint. Raises `ServerRefused`, `ServerDied`."""
        await self._load_folder(Path(path), name)

    async def _load_folder(self, folder: Path, name: str) -> None:
        body = UpdateWeightsFromDisk(model_path=str(folder), weight_version=name)
        await self._tell("/update_weights_from_disk", body)

    async def _load_image(self, fetched: Fetched, name: str) -> bool:
        """False if the server has no session for weights, and nothing was done."""
        order = await asyncio.to_thread(self._folder.write_order, fetched)
        if not await self._begin():
            self._by_image = False
            return False
        named = [only_a_name(str(order))] * self._ranks
        try:
            body = UpdateWeightsFromTensor(
                serialized_named_tensors=named, load_format=LOADER, weight_version=name
            )
            await self._tell("/update_weights_from_tensor", body)
        finally:
            await self._tell("/end_weight_update", EmptyBody())
        await self._require_loaded(order)
        return True

    async def _begin(self) -> bool:
        """Open a session; a session that a dead client left open is closed first."""
        try:
            await self._tell("/begin_weight_update", EmptyBody())
        except ServerRefused as refused:
            if refused.status == NO_ROUTE:
                return False
            await self._tell("/end_weight_update", EmptyBody())
            await self._tell("/begin_weight_update", EmptyBody())
        return True

    async def _require_loaded(self, order: Path) -> None:
        """Require that every rank reports these weights. Raises `ServerRefused`."""
        try:
            async with asyncio.timeout(REPORT_S):
                while len(problems := self._folder.reports(order)) < self._ranks:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)  # files of other processes
        except TimeoutError as late:
            raise ServerDied(
                f"{len(problems)} of {self._ranks} ranks of {self._http.url} reported within {REPORT_S:g} s "
                "whether they loaded"
            ) from late
        if failed := [problem for problem in problems if problem]:
            raise ServerRefused(f"{len(failed)} of {self._ranks} ranks failed: {failed[0]}", never=False)

    async def _tell(
        self, path: str, body: EmptyBody | UpdateWeightsFromDisk | UpdateWeightsFromTensor
    ) -> None:
        reply = await self._http.post(path, body, Updated, LOAD_S)
        if not reply.success:
            raise ServerRefused(f"{path}: {reply.message}", never=False)
