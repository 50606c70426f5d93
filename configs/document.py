"""Generator of docs/configuration.md: `python -m gleaner.configs.document`.

It prints every setting of the schema as a page. Owns the page's form. The texts are the docstrings of
`gleaner.configs.sections`; the types, ranges and defaults are from there too, so the page cannot differ from
what `load` does.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator

import msgspec

from gleaner.configs import check, schema

_PATTERN = re.compile(r"matches (\S+)")  # shown as code: brackets are links in Markdown
HEADER = """\
# Settings

<!-- Made by `python -m gleaner.configs.document > docs/configuration.md`; the words: configs/sections/. -->

A run's settings are one TOML file with the sections below. `rlctl run` takes the path of such a file, or the
name of a preset that comes with the package (`quickstart`); each setting can be given on the command line,
which wins:

```
rlctl run quickstart --set rollout.samples=16 --set job.seed=1
```

What is not given has its default. Unknown keys, wrong types and values out of range are refused before
anything starts, all at once, each with its path, what was expected and the closest known key. The resolved
settings of a run are in `runs/<id>/config.toml`; a resume uses those.

A relative path in a file is relative to that file's folder; one given with `--set` is relative to the working
directory. Units are in the names; a name without a unit is a count, a ratio or a text.
"""


def page() -> str:
    """The whole page, Markdown."""
    return "\n".join([HEADER, *_sections(schema.Config, "")])


def _sections(section: check.SectionType, prefix: str, *, repeated: bool = False) -> Iterator[str]:
    texts = _field_texts(section)
    rows = []
    for field in msgspec.structs.fields(section):
        inner = check.as_section(field.type)
        if inner is None:
            value = _PATTERN.sub(r"matches `\1`", _cell(check.expectation(field.type)))
            cells = (f"`{field.encode_name}`", value, f"`{_default(field)}`")
            rows.append(f"| {' | '.join(cells)} | {_cell(texts[field.name])} |")
    if rows:
        name = f"[[{prefix}]]" if repeated else f"[{prefix}]"
        yield f"## `{name}`\n\n{inspect.getdoc(section)}\n"
        yield "| setting | value | default | |\n|---|---|---|---|"
        yield "\n".join(rows) + "\n"
    for field in msgspec.structs.fields(section):
        inner = check.as_section(field.type)
        if inner is not None:
            name = f"{prefix}.{field.name}" if prefix else field.name
            yield from _sections(inner, name, repeated=check.is_list(field.type))


def _field_texts(section: check.SectionType) -> dict[str, str]:
    """The text under each field. Raises KeyError later for a field without one: document it."""
    (body,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = inspect.cleandoc(text)
    return texts


def _default(field: msgspec.structs.FieldInfo) -> str:
    """As it would be written in a TOML file."""
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
