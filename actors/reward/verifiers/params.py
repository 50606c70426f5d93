"""Parameters of a verifier, as its task's settings give them."""

from difflib import get_close_matches
from typing import TypeVar

import msgspec

from actors.reward.verifiers.port import BadVerifier, VerifierSpec

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
