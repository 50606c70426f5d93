"""A reader of published versions by slime's documentation, without our code.

It acts as an engine's host on /pull_weights: it seeds a local checkpoint from the newest whole version,
patches it in place with each difference, checks each tensor's digest, and records its version.
"""

import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import blake3
import xxhash
from backports import zstd


def pull(local: Path, base: Path, source: Path, target: int) -> None:
    """Bring `local` to `target`. Raises AssertionError where a host would refuse."""
    local.mkdir(exist_ok=True)
    marker = local / "applied"
    applied = int(marker.read_text()) if marker.exists() else -1
    start = target
    while start > max(applied, 0) and "delta_encoding" in _about(source / f"weight_v{start:06d}"):
        start -= 1
    if start > applied:
        for path in (base if start == 0 else source / f"weight_v{start:06d}").iterdir():
            shutil.copyfile(path, local / path.name)
        marker.write_text(str(start))
    for version in range(int(marker.read_text()) + 1, target + 1):
        _apply(local, source / f"weight_v{version:06d}")
        marker.write_text(str(version))


def tensors(folder: Path) -> dict[str, bytes]:
    """All tensors of a checkpoint."""
    return {name: data for path in sorted(folder.glob("*.safetensors")) for name, data in _read(path).items()}


def _about(folder: Path) -> dict[str, Any]:
    assert folder.is_dir(), f"{folder} is missing"
    path = folder / "model.safetensors.index.json"
    about: dict[str, Any] = json.loads(path.read_text())["metadata"] if path.exists() else {}
    return about


def _apply(local: Path, folder: Path) -> None:
    about = _about(folder)
    assert int(about["base_version"]) == int((local / "applied").read_text())
    assert about["compression_format"] == "zstd"
    for path in sorted(folder.glob("*.safetensors")):
        digests = _header(path).get("__metadata__", {})
        for name, pressed in _read(path).items():
            home = next(one for one in local.glob("*.safetensors") if name in _header(one))
            old = bytearray(_read(home)[name])
            _change(old, zstd.decompress(pressed), about["delta_encoding"])
            assert _digest(about["checksum_format"], bytes(old)) == digests[name], name
            begin = 8 + struct.unpack("<Q", home.read_bytes()[:8])[0] + _header(home)[name]["data_offsets"][0]
            with home.open("r+b") as file:
                file.seek(begin)
                file.write(old)


def _change(data: bytearray, difference: bytes, encoding: str) -> None:
    if encoding == "xor":
        assert len(difference) == len(data)
        for at, byte in enumerate(difference):
            data[at] ^= byte
        return
    count = int.from_bytes(difference[:4], "little")
    for at, position in enumerate(struct.unpack(f"<{count}I", difference[4 : 4 + 4 * count])):
        data[position] = difference[4 + 4 * count + at]


def _digest(name: str, data: bytes) -> str:
    if name == "adler32":
        return f"{zlib.adler32(data):08x}"
    return xxhash.xxh3_128(data).hexdigest() if name == "xxh3-128" else blake3.blake3(data).hexdigest()


def _header(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    return found


def _read(path: Path) -> dict[str, bytes]:
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    return {
        name: data[start + spec["data_offsets"][0] : start + spec["data_offsets"][1]]
        for name, spec in _header(path).items()
        if name != "__metadata__"
    }
