"""Weight versions as Hugging Face checkpoint folders, renamed when complete.

Engines read them. Owns the folders under one directory and the number of kept ones. Adapter: torch and files,
in a trainer's process.
"""

import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import torch
from safetensors.torch import save_file

KEPT = 2
"""Kept versions: the served one and the one that is being written; engines copy what they load."""
SHARD_BYTES = 4 << 30
INDEX = "model.safetensors.index.json"


class Folders:
    """Args: root: folder of the versions, shared by the trainer and the engines. like: the checkpoint whose
    config and tokenizer files go with the weights."""

    def __init__(self, root: Path, like: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self._root = root
        self._like = like
        self._shard_bytes = shard_bytes

    async def write(self, weights: AsyncIterator[tuple[str, torch.Tensor]], version: int | None) -> Path:
        """The folder of a version, complete. Older ones beyond those kept are removed. Raises OSError."""
        self._root.mkdir(parents=True, exist_ok=True)
        number = version if version is not None else max(self._numbers(), default=-1) + 1
        folder, part = self._root / f"version-{number}", self._root / f".version-{number}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        for file in self._like.iterdir():
            if file.is_file() and file.suffix in {".json", ".txt", ".jinja", ".model"} and file.name != INDEX:
                shutil.copyfile(file, part / file.name)
        await self._write_shards(weights, part)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(part, folder)
        for old in sorted(self._numbers())[:-KEPT]:
            if old != number:
                shutil.rmtree(self._root / f"version-{old}", ignore_errors=True)
        return folder

    async def _write_shards(self, weights: AsyncIterator[tuple[str, torch.Tensor]], part: Path) -> None:
        held: dict[str, torch.Tensor] = {}
        held_bytes = total_bytes = shards = 0
        where: dict[str, str] = {}

        def flush() -> None:
            nonlocal held_bytes, shards
            name = f"model-{shards:05d}.safetensors"
            save_file(held, part / name, metadata={"format": "pt"})
            where.update(dict.fromkeys(held, name))
            held.clear()
            held_bytes, shards = 0, shards + 1

        async for name, tensor in weights:
            # A copy: the sender may use the memory again for the next one.
            held[name] = tensor.detach().to("cpu", copy=True).contiguous()
            held_bytes += held[name].nbytes
            total_bytes += held[name].nbytes
            if held_bytes >= self._shard_bytes:
                flush()
        if held:
            flush()
        index = {"metadata": {"total_size": total_bytes}, "weight_map": where}
        (part / INDEX).write_text(json.dumps(index))

    def _numbers(self) -> list[int]:
        found = (path.name.removeprefix("version-") for path in self._root.glob("version-*"))
        return [int(number) for number in found if number.isdecimal()]
