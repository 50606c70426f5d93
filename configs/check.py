"""Checks of a tree of settings against the schema; problems are returned as texts.

Pure: plain dicts go in, (key, problem) pairs are returned. Does not read files (`gleaner.configs.load`) and
knows no setting by name: everything is derived from the types in `gleaner.configs.sections`.
"""

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import get_args, get_origin

import msgspec
from msgspec import inspect as shapes

SectionType = type[msgspec.Struct]

UNKNOWN = "unknown key"
MAX_SHOWN = 80
"""Characters of a refused value in a message: enough to know it again, on one line."""


def problems(section: SectionType, tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key, what is wrong) for each setting that is unknown, ill-typed or out of its range.

    Rules between two settings are not checked here: they hold for whole sections and are in the schema.
    """
    fields = fields_of(section)
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if name not in fields:
            yield key, getattr(section, "no_settings", {}).get(name, UNKNOWN)
            continue
        inner = as_section(fields[name])
        if inner and isinstance(value, Mapping):
            yield from problems(inner, value, f"{key}.")
        elif inner and is_list(fields[name]) and isinstance(value, list) and value:
            for number, one in enumerate(value):
                place = key if len(value) == 1 else f"{key}[{number}]"
                if isinstance(one, Mapping):
                    yield from problems(inner, one, f"{place}.")
                else:
                    yield place, f"expected a section of settings, got {shown(one)}"
        elif inner or not fits(value, fields[name]):
            yield key, f"expected {expectation(fields[name])}, got {shown(value)}"


def fits(value: object, kind: object) -> bool:
    """Whether a field of this type may have the value; NaN and infinities are never allowed."""
    if not _finite(value):
        return False
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def suggestion(key: str, root: SectionType) -> str:
    """For an unknown key: the closest known one, or the list of the keys beside it."""
    known = list(known_keys(root))
    key = re.sub(r"\[\d+\]", "", key)  # of which section in a list
    section, _, leaf = key.rpartition(".")
    sections = sorted({name.rpartition(".")[0] for name in known})
    beside = [name for name in known if name.rpartition(".")[0] == section] or sections
    elsewhere = [name for name in known if name.rpartition(".")[2] == leaf]  # right name, wrong section
    near = (
        difflib.get_close_matches(key, elsewhere, n=1, cutoff=0.0)
        or difflib.get_close_matches(leaf, [name.rpartition(".")[2] for name in beside], n=1, cutoff=0.6)
        or difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    )
    if near:
        found = (name for name in [*beside, *known] if f".{name}".endswith(f".{near[0]}"))
        return f"did you mean {next(found)}?"
    return f"known here: {', '.join(beside)}"


def known_keys(section: SectionType, prefix: str = "") -> Iterator[str]:
    """Every settable key, as `section.key`."""
    for name, kind in fields_of(section).items():
        inner = as_section(kind)
        if inner:
            yield from known_keys(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def field_type(root: SectionType, parts: Sequence[str]) -> object | None:
    """The type of a key, a section's included; None for an unknown key."""
    kind: object | None = root
    for part in parts:
        section = as_section(kind)
        kind = fields_of(section).get(part) if section else None
    return kind


@cache  # of as many as there are sections
def fields_of(section: SectionType) -> Mapping[str, object]:
    """Name to type of a section's settings."""
    return {field.encode_name: field.type for field in msgspec.structs.fields(section)}


def as_section(kind: object) -> SectionType | None:
    """The type itself if it is a section, or the item type if it is a list of sections, else None."""
    if is_list(kind):
        kind = get_args(kind)[0]
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def is_list(kind: object) -> bool:
    """Whether a type is a list of sections, `[[name]]` in TOML; a file may have a single one as `[name]`."""
    inner = get_args(kind)
    return (
        get_origin(kind) is tuple
        and inner[1:] == (...,)
        and isinstance(inner[0], type)
        and issubclass(inner[0], msgspec.Struct)
    )


def listed(section: SectionType, tree: Mapping[str, object]) -> dict[str, object]:
    """The tree with a list in the place of each single section that may be repeated."""
    lists = {name for name, kind in fields_of(section).items() if is_list(kind)}
    found = dict(tree)
    for name in lists & tree.keys():
        value = tree[name]
        found[name] = (
            [value] if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
        )
    return found


def is_host_path(kind: object) -> bool:
    """Whether a type is `sections.values.HostPath`, or one that is such a path too."""
    return bool(_extra(kind).get("host_path"))


def default_path(kind: object) -> str:
    """The default of a path setting that has one if its section is given, relative to the file's folder; ""
    for none."""
    return str(_extra(kind).get("default", ""))


def _extra(kind: object) -> Mapping[str, object]:
    shape = None if as_section(kind) else shapes.type_info(kind)
    return (shape.extra or {}) if isinstance(shape, shapes.Metadata) else {}


def expectation(kind: object) -> str:
    """A type in words: "an integer ≥ 1"."""
    return "a section of settings" if as_section(kind) else _words(shapes.type_info(kind))


def shown(value: object) -> str:
    """A value as it would be typed, cut to a readable length."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _words(shape: shapes.Type) -> str:
    match shape:
        case shapes.Metadata(type=inner):
            return _words(inner)
        case shapes.IntType():
            factor = f", divisible by {shape.multiple_of}" if shape.multiple_of else ""
            return f"an integer{_range(shape)}{factor}"
        case shapes.FloatType():
            return f"a number{_range(shape)}"
        case shapes.BoolType():
            return "true or false"
        case shapes.LiteralType(values=values):
            return "one of " + ", ".join(repr(value) for value in values)
        case shapes.StrType(pattern=pattern, min_length=shortest, max_length=longest):
            if pattern:
                return f"a text that matches {pattern}"
            limits = [f"at least {shortest}"] * bool(shortest) + [f"at most {longest}"] * bool(longest)
            return f"a text of {' and '.join(limits)} characters" if limits else "a text"
        case shapes.TupleType(item_types=items):
            return f"a list of {len(items)}, each {_words(items[0])}"
        case shapes.ListType(item_type=item):
            return f"a list, each {_words(item)}"
        case shapes.DictType():
            return "a table of plain values"
    return type(shape).__name__.removesuffix("Type").lower()


def _range(shape: shapes.IntType | shapes.FloatType) -> str:
    signs = {">": shape.gt, "≥": shape.ge, "<": shape.lt, "≤": shape.le}
    limits = [f"{sign} {limit:.12g}" for sign, limit in signs.items() if limit is not None]
    return f" {' and '.join(limits)}" if limits else ""


def _finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(_finite(inner) for inner in value.values())
    return not isinstance(value, list) or all(_finite(inner) for inner in value)
