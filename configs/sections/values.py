"""Types of settings' values, and the base of every section."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

Param = bool | int | float | str | list[bool | int | float | str]

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Decay = Annotated[float, Meta(ge=0, lt=1)]
HostPath = Annotated[str, Meta(extra={"host_path": True})]
"""A path on this host; "" = none. `load` makes it absolute: from a file, relative to that file's folder;
from `--set`, relative to the working directory."""
SettingsFolder = Annotated[str, Meta(extra={"host_path": True, "default": "."})]
"""A path on this host. If it is missing and its section is given: the folder of the file."""
URL = r"^(https?://[^/\s@]+(/\S*)?)?\Z"
"""Pattern of a URL without user and password, or nothing."""
VARIABLE = r"^([A-Za-z_][A-Za-z0-9_]*)?\Z"
"""Pattern of the name of a variable of the environment, or nothing."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: frozen, by keyword, unknown keys refused."""

    no_settings: ClassVar[Mapping[str, str]] = {}
    """Keys that users expect here, with the reason why there are none."""
