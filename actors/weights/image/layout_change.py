"""Comparison of tensor names, shapes and dtypes between two versions.

Owns the comparison and its wording. Pure. Engines that serve one model load no other: names, shapes and
dtypes stay, unless the publisher declares that the model changed.
"""

from collections.abc import Sequence

from gleaner.actors.model.tensor_spec import TensorSpec


def layout_change(before: Sequence[TensorSpec], now: Sequence[TensorSpec]) -> str:
    """The first difference of names, shapes and dtypes; "" for none. The order and the offsets of tensors are
    not compared."""
    old, new = {spec.name: spec for spec in before}, {spec.name: spec for spec in now}
    if lost := sorted(old.keys() - new.keys()):
        return f"{_many(lost)} there no longer, first {lost[0]!r}"
    if added := sorted(new.keys() - old.keys()):
        return f"{_many(added)} new, first {added[0]!r}"
    for name, spec in sorted(new.items()):
        was = old[name]
        if was.shape != spec.shape:
            return f"{name!r} has shape {list(spec.shape)}, it had {list(was.shape)}"
        if was.dtype != spec.dtype:
            return f"{name!r} is {spec.dtype}, it was {was.dtype}"
    return ""


def _many(names: Sequence[str]) -> str:
    return "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"
