"""Device: what an instance computes on, where other instances compute there too."""

from typing import Annotated

import msgspec


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance computes on, if others compute there too. `name`: equal for all of them; `share`: the
    part of the device that the instance occupies while it decodes."""

    name: str
    share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
