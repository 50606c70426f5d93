"""SGLang weight loader: from a flat image in shared memory, on the same host.

Use it with `--custom-weight-loader gleaner_sglang.load_image`.

Owns the mapping and the hand-over to the model's own loader, which shards and fuses as for a checkpoint. Runs
in SGLang's schedulers, one a rank, so it knows nothing of Gleaner but two files: the order (the path of the
image and the offset of each tensor), and beside it a report for each rank. The sender of the order has
verified the image by hash.
"""

import fcntl
import json
import mmap
import os
from pathlib import Path

import torch

Row = tuple[str, str, list[int], int, int]
"""name, dtype as torch names it ("float32"), shape, offset and size in bytes"""


class BadImage(ValueError):
    """The image does not fit its layout; the model is as it was."""


def load_image(model: torch.nn.Module, named_tensors: list[tuple[str, torch.Tensor]]) -> None:
    """Called by SGLang in each rank, between begin and end of a weight update, with one pair, whose name is
    the path of the order.

    Writes `loaded-<pid>.json` beside it, `{"problem": ""}` or why it failed: SGLang ends its process for any
    exception here, and reports success for any return value.
    """
    [(path, _)] = named_tensors
    order, problem = Path(path), ""
    try:
        request = json.loads(order.read_text())
        # All views before the first byte is copied: a layout that does not fit changes nothing.
        model.load_weights(iter(_views(request["path"], request["tensors"])))  # type: ignore[operator]
    except Exception as failed:  # noqa: BLE001 - any error of a model's loader; it is reported
        problem = f"{type(failed).__name__}: {failed}"
    report = order.with_name(f"loaded-{os.getpid()}.json")
    draft = report.with_suffix(".draft")
    draft.write_text(json.dumps({"problem": problem}))
    draft.rename(report)


def _views(path: str, rows: list[Row]) -> list[tuple[str, torch.Tensor]]:
    """The tensors of the image, sharing its memory; each keeps the mapping alive."""
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # the image is not written while it is mapped
        size = os.fstat(file.fileno()).st_size
        # Private, so that no loader can write into memory that others read; nothing is copied unless one
        # does.
        image = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    views = []
    for name, dtype, shape, offset, nbytes in rows:
        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype):
            raise BadImage(f"{name!r} is of {dtype!r}, which torch does not have")
        count = torch.Size(shape).numel()
        if count * kind.itemsize != nbytes or offset < 0 or offset + nbytes > size:
            raise BadImage(
                f"{name!r} ({dtype}{shape}) at {offset}, {nbytes} bytes, does not fit {path}, "
                f"which has {size}"
            )
        flat = torch.frombuffer(image, dtype=kind, count=count, offset=offset)
        views.append((name, flat.view(shape)))
    return views
