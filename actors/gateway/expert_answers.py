"""Routed experts in the forms of SGLang, prime-rl and SkyRL, newer vLLM. Pure."""

import base64
import io

import numpy as np
from numpy.typing import NDArray

from gleaner.actors.gateway.ask import Busy, Routed
from gleaner.actors.gateway.vllm.wire import RoutedExperts

NO_EXPERTS = (
    "the engines behind this gateway do not report the experts of their tokens: start them with "
    "--enable-return-routed-experts, and a job's gateway with gateway.routed_experts"
)
NO_SHAPE = (
    "the layers of a row of experts are unknown here: the model's folder with its config.json is not "
    "on this host; name it (rlctl gateway --tokenizer), or ask at /generate"
)


def as_int32(routed: Routed, start: int) -> bytes:
    """Base64 of int32, little-endian, from token `start` on, as in SGLang."""
    return base64.b64encode(routed.rows[start:].astype("<i4").tobytes())


def as_object(routed: Routed, start: int, shape: tuple[int, int]) -> RoutedExperts:
    """An object with its shape. Raises Busy if the rows have another shape than the model."""
    rows = _shaped(routed, start, shape)
    return RoutedExperts(
        data=base64.b64encode(rows.tobytes()).decode(),
        shape=(rows.shape[0], rows.shape[1], rows.shape[2]),
        dtype=rows.dtype.name,
    )


def as_npy(routed: Routed, start: int, shape: tuple[int, int]) -> str:
    """Base64 of an .npy file. Raises Busy if the rows have another shape than the model."""
    file = io.BytesIO()
    np.save(file, _shaped(routed, start, shape), allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()


def _shaped(routed: Routed, start: int, shape: tuple[int, int]) -> NDArray[np.generic]:
    layers, each = shape
    rows = routed.rows[start:]
    if rows.shape[1] != layers * each:
        raise Busy(f"an engine reported {rows.shape[1]} experts a token, the model has {layers} x {each}")
    return rows.reshape(len(rows), layers, each)
