"""Parameters of a verifier, from its task's settings."""

from difflib import get_close_matches
from typing import TypeVar

import msgspec

from gleaner.actors.reward.verifiers.port import BadVerifier, VerifierSpec

P = TypeVar("P", bound=msgspec.Struct)


def read(spec: VerifierSpec, shape: type[P]) -> P:
    """The parameters of `spec` as `shape`. Raises `BadVerifier`."""
    where = f"task {spec.task}: verifier {spec.name}"
    known = shape.__struct_fields__
    for name in spec.params:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise BadVerifier(f"{where}: it has no parameter {name!r}; {hint}")
    try:
        return msgspec.convert(dict(spec.params), shape)
    except msgspec.ValidationError as error:
        raise BadVerifier(f"{where}: {error}") from error


def deadline_s(spec: VerifierSpec, own_s: float | None) -> float:
    """The processor time of one program: the job's, or less. Raises `BadVerifier`."""
    if own_s is not None and own_s > spec.deadline_s:
        raise BadVerifier(
            f"task {spec.task}: verifier {spec.name}: deadline_s is {own_s:g}, and workers have time for "
            f"{spec.deadline_s:g}: raise reward.deadline_s"
        )
    return spec.deadline_s if own_s is None else own_s
