"""Baseline: a server whose weights its trainer's framework replaces.

Two ways, on the same server, under the same load, with the same bytes. *Paused for the transfer*: generation
is paused, the checkpoint is sent over a socket (loopback; blocking, unchecked: as fast as TCP is) and is
loaded from shared memory, then generation continues. Frameworks that send weights to a fixed group of engines
work so. *From disk*: a checkpoint is in shared memory already, and the server is paused while it reads that.
"""

import asyncio
import mmap
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.weights.pause.flips import Flip, Times, first_of
from bench.weights.pause.load import Load, ToServer
from bench.weights.pause.versions import Layout
from gleaner.actors.engine.images.checkpoint_folder import WEIGHTS, copy_weights
from gleaner.actors.engine.servers.http import HttpWire
from gleaner.actors.engine.servers.sglang import SglangWire
from gleaner.actors.engine.servers.sglang_messages import Updated, UpdateWeightsFromDisk
from gleaner.actors.model.config_text import hub_settings
from gleaner.actors.training.new_tokenizer import new_tokenizer
from gleaner.actors.weights.image.reader_locks import in_file, let_go, mapped
from gleaner.actors.weights.image.safetensors_file import header

TRANSFER, DISK = "paused for the transfer", "update_weights_from_disk"
LOAD_S = 600.0
SEND_BYTES = 4 << 20


@dataclass
class Baseline:
    """A server at `url`, and the newest image of its trainer."""

    engine: str
    url: str
    image: Path
    layout: Layout
    folder: Path

    def prepare(self) -> None:
        """The folder of the model, without weights; its tokenizer knows a few characters."""
        self.folder.mkdir(parents=True, exist_ok=True)
        characters = "".join(chr(0x4E00 + number) for number in range(256))
        new_tokenizer([characters], []).save(str(self.folder / "tokenizer.json"))
        config = msgspec.json.encode(self.layout.config)
        (self.folder / "config.json").write_bytes(hub_settings(config, "bfloat16"))

    async def measured(self, load: Load, rounds: int, times: Times) -> list[Flip]:
        """Both ways, in turn."""
        wire, http = SglangWire(self.url, None), HttpWire(self.url)
        steady = ToServer(wire, load, self.layout.config.vocab_size)
        found: list[Flip] = []
        try:
            steady.begin()
            await asyncio.sleep(times.steady_s)
            for number in range(rounds):
                for way, bring in ((TRANSFER, self._transfer), (DISK, self.copy)):
                    name = f"{way}, {number}"
                    found.append(await self._flip(steady, wire, http, way, name, bring, times))
            await steady.end()
        finally:
            await wire.disconnect()
            await http.close()
        return found

    async def _flip(
        self,
        steady: ToServer,
        wire: SglangWire,
        http: HttpWire,
        way: str,
        name: str,
        bring: Callable[[], None],
        times: Times,
    ) -> Flip:
        began_s = time.monotonic()
        await asyncio.sleep(times.steady_s)
        called_s = time.monotonic()
        if way == DISK:
            await asyncio.to_thread(bring)
        brought_s = paused_s = time.monotonic()
        await wire.pause("retract")
        if way == TRANSFER:
            await asyncio.to_thread(bring)
            brought_s = time.monotonic()
        body = UpdateWeightsFromDisk(model_path=str(self.folder), weight_version=name)
        reply = await http.post("/update_weights_from_disk", body, Updated, LOAD_S)
        if not reply.success:
            raise RuntimeError(f"{self.url} did not load {self.folder}: {reply.message}")
        await wire.go_on()
        still_s = time.monotonic() - paused_s
        timeline = steady.timeline
        first_s = await first_of(timeline, name, steady.look)
        await asyncio.sleep(times.after_s)
        return Flip(
            engine=self.engine,
            way=way,
            pause_s=timeline.longest_gap_s(paused_s, first_s),
            usual_s=timeline.longest_gap_s(began_s, called_s),
            lag_s=first_s - called_s,
            before=timeline.rate(began_s, called_s),
            during=timeline.rate(called_s, first_s),
            fetch_s=brought_s - (called_s if way == DISK else paused_s),
            still_s=still_s,
        )

    def copy(self) -> None:
        """The checkpoint, written by a trainer on the same machine."""
        copy_weights(self.image, in_file(self.image, self.layout.tensors), self.folder / WEIGHTS)

    def _transfer(self) -> None:
        """The checkpoint, over a socket. The receiver blocks in `recv_into`, a thread in `sendall`."""
        head = header(self.layout.tensors, self.layout.nbytes)
        size = len(head) + self.layout.nbytes
        target = self.folder / WEIGHTS
        target.unlink(missing_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as listening, target.open("wb+") as file:
            file.truncate(size)
            with mmap.mmap(file.fileno(), size) as into, memoryview(into) as view:
                sending = threading.Thread(target=self._send, args=(listening.getsockname(), head))
                sending.start()
                connection, _ = listening.accept()
                with connection:
                    at = 0
                    while at < size:
                        got = connection.recv_into(view[at : at + SEND_BYTES])
                        if not got:
                            raise ConnectionError(f"{at} of {size} bytes came")
                        at += got
                sending.join()

    def _send(self, to: tuple[str, int], head: bytes) -> None:
        view = mapped(self.image)
        with socket.create_connection(to) as connection:
            connection.sendall(head)
            connection.sendall(view)
        let_go(view)
