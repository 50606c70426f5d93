"""Struct as a Markdown table: fields, allowed values and meanings.

Owns the form and the names of types. The meaning of a field is the text under it in the source, that of a
struct its docstring.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import inspect as types

_CLAUSE = re.compile(r"(?:`\w+`(?:, | and )?)+:\s")
_NAME = re.compile(r"`(\w+)`")
_WORDS = {
    types.NoneType: "nil",
    types.BoolType: "bool",
    types.IntType: "int",
    types.FloatType: "float",
    types.StrType: "str",
    types.BytesType: "bin",
    types.AnyType: "anything",
}


def words(cls: type) -> str:
    """The docstring on one line, without its texts about single fields, which are in the table."""
    return _cell(_split(cls)[0])


def array(cls: type) -> str:
    """The table of a struct that travels as an array, with the positions of its fields."""
    rows = [(str(n), *row) for n, row in enumerate(_rows(cls))]
    return _table(["#", "field", "type", "default", "meaning"], rows)


def map_(cls: type) -> list[str]:
    """The table of a struct that travels as a map; nothing for one without fields."""
    rows = list(_rows(cls))
    return [_table(["field", "type", "default", "meaning"], rows)] if rows else []


def _table(head: list[str], rows: Sequence[tuple[str, ...]]) -> str:
    """Markdown; an empty column is left out."""
    kept = [n for n in range(len(head)) if any(row[n] for row in rows)]
    lines = [[head[n] for n in kept], ["---"] * len(kept), *([row[n] for n in kept] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def inside(cls: type) -> list[type]:
    """The structs inside the fields of `cls`, at any depth."""
    found: dict[type, None] = {}

    def look(kind: Any) -> None:
        if isinstance(kind, types.StructType | types.DataclassType):
            if kind.cls in found:
                return
            if kind.cls is not cls:
                found[kind.cls] = None
            for field in kind.fields:
                look(field.type)
        for name in ("item_type", "key_type", "value_type", "types", "item_types"):
            inner = getattr(kind, name, ())
            for it in inner if isinstance(inner, tuple) else (inner,):
                look(it)

    look(types.type_info(cls))
    return list(found)


def _rows(cls: type) -> Iterator[tuple[str, str, str, str]]:
    texts = {**_split(cls)[1], **_field_texts(cls)}
    kind = types.type_info(cls)
    assert isinstance(kind, types.StructType | types.DataclassType)
    for field in kind.fields:
        yield f"`{field.name}`", _type(field.type), _default(field), _cell(texts.get(field.name, ""))


def _split(cls: type) -> tuple[str, dict[str, str]]:
    """A docstring, split into the text about the whole and the texts about fields, as in "`one`: text; `two`,
    `three`: text"."""
    names = set(cls.__annotations__)
    whole, texts = [], {}
    for paragraph in (inspect.getdoc(cls) or "").split("\n\n"):
        marks = [it for it in _CLAUSE.finditer(paragraph) if set(_NAME.findall(it[0])) <= names]
        whole.append(paragraph[: marks[0].start()] if marks else paragraph)
        ends = [it.start() for it in marks[1:]] + [len(paragraph)]
        for mark, end in zip(marks, ends, strict=False):
            text = paragraph[mark.end() : end].strip().rstrip(".;,")
            texts.update(dict.fromkeys(_NAME.findall(mark[0]), text))
    return " ".join(whole), texts


def _type(kind: types.Type) -> str:
    match kind:
        case types.UnionType():
            return " or ".join(_type(it) for it in kind.types)
        case types.ListType() | types.VarTupleType():
            return f"array of {_type(kind.item_type)}"
        case types.TupleType():
            return f"array [{', '.join(_type(it) for it in kind.item_types)}]"
        case types.DictType():
            return f"map of {_type(kind.key_type)} to {_type(kind.value_type)}"
        case types.StructType() | types.DataclassType():
            return str(kind.cls.__name__)
        case types.LiteralType():
            return ", ".join(f"`{value}`" for value in kind.values)
        case types.EnumType():
            return ", ".join(f"`{member.value}` {member.name.lower()}" for member in kind.cls)
        case types.IntType(ge=low, le=high) if (low, high) != (None, None):
            return f"int, {_range(low, high)}"
        case types.StrType(pattern=str(pattern)):
            return f"str of the form `{pattern}`"
        case types.StrType(max_length=int(high)) | types.BytesType(max_length=int(high)):
            return f"{_WORDS[type(kind)]}, up to {high} characters"
    return _WORDS[type(kind)]


def _range(low: int | None, high: int | None) -> str:
    if high is None:
        return f"{low} or more"
    power = high.bit_length()
    shown = f"2^{power} - 1" if high == (1 << power) - 1 and power > 16 else str(high)
    return f"{low} to {shown}"


def _default(field: types.Field) -> str:
    if field.required:
        return ""
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if value is None:
        return "nil"
    shown = getattr(value, "value", value)
    if isinstance(shown, tuple | list) and shown:
        return ", ".join(f"`{item}`" for item in shown)
    return (
        "empty"
        if shown in ("", b"", (), [], {})
        else f"`{str(shown).lower() if shown is True or shown is False else shown}`"
    )


def _field_texts(cls: type) -> dict[str, str]:
    """The text under each field that has one."""
    (body,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = inspect.cleandoc(text)
    return texts


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
