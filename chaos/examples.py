"""Examples: one of every sent or journaled struct, made from its types alone.

Owns the choice of values: a value depends on the path to its field and on nothing else, so a field that is
added moves no other one, and two fields of a struct never hold the same. Every optional field is filled.
Names no message.
"""

import zlib
from typing import Any, TypeVar

import msgspec
from msgspec import inspect as types

S = TypeVar("S", bound=msgspec.Struct)

ELEMENTS = 2
"""Minimum of items in an example's lists and maps: a single item hides the separators."""


def example(cls: type[S]) -> S:
    """The example of `cls`. Raises NotImplementedError for a type that no struct here has had yet."""
    return msgspec.convert(_value(types.type_info(cls), cls.__name__), cls)


def _value(kind: types.Type, path: str) -> Any:
    number = zlib.crc32(path.encode())
    number >>= 8 * (number % 4)  # of every width that MessagePack has for it
    match kind:
        case types.NoneType():
            return None
        case types.BoolType():
            return True
        case types.IntType():
            return _bounded(number, kind.ge, kind.le)
        case types.FloatType():
            eighths = number % 4096 / 8  # exact in binary, in any precision
            return eighths if kind.le is None else kind.le * (eighths + 0.125) / 512
        case types.StrType(pattern=None):
            return path.rpartition(".")[2][: kind.max_length]
        case types.StrType():
            return "run-1"
        case types.BytesType():
            return number.to_bytes(4, "little")
        case types.AnyType() | types.CustomType():
            return path.rpartition(".")[2]
        case types.LiteralType():
            return kind.values[-1]
        case types.EnumType():
            return list(kind.cls)[-1].value
        case types.UnionType():
            return _value(_alternatives(kind)[0], path)
        case types.ListType() | types.VarTupleType() | types.SetType() | types.FrozenSetType():
            return [_value(item, f"{path}.{n}") for n, item in enumerate(_items(kind.item_type))]
        case types.TupleType():
            return [_value(item, f"{path}.{n}") for n, item in enumerate(kind.item_types)]
        case types.DictType():
            keys = _items(kind.key_type)
            values = _items(kind.value_type)
            return {
                _value(keys[n % len(keys)], f"{path}.key{n}"): _value(values[n], f"{path}.{n}")
                for n in range(len(values))
            }
        case types.StructType() | types.DataclassType():
            fields = {field.encode_name: _value(field.type, f"{path}.{field.name}") for field in kind.fields}
            if isinstance(kind, types.StructType) and kind.array_like:
                return ([kind.tag] if kind.tag is not None else []) + list(fields.values())
            if isinstance(kind, types.StructType) and kind.tag_field is not None:
                fields[kind.tag_field] = kind.tag
            return fields
    raise NotImplementedError(f"{path}: add an example of {kind} to chaos/examples.py")


def _alternatives(kind: types.Type) -> list[types.Type]:
    """Types of a field besides nil."""
    if not isinstance(kind, types.UnionType):
        return [kind]
    return [it for it in kind.types if not isinstance(it, types.NoneType)]


def _items(kind: types.Type) -> list[types.Type]:
    """The types of a collection's items: every alternative, and at least `ELEMENTS`."""
    found = _alternatives(kind)
    return found * ELEMENTS if len(found) < ELEMENTS else found


def _bounded(number: int, low: int | None, high: int | None) -> int:
    low = 0 if low is None else low
    return low + number if high is None else low + number % (high - low + 1)
