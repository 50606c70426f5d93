"""Sections: base of the structs that hold the sections of the settings which one actor reads.

An actor that reads several sections takes one such struct, so its signature shows what it depends on.
"""

from dataclasses import dataclass, fields
from typing import Self

from gleaner.configs.schema import Config


@dataclass(frozen=True, slots=True)
class Sections:
    """Base of a struct whose fields have the names and types of sections of `Config`."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """These sections of the resolved settings of a job."""
        return cls(**{section.name: getattr(config, section.name) for section in fields(cls)})
