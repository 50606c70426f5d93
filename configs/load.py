"""Loader of settings from TOML files and `--set` texts, and writer back to TOML.

Owns the reading, the base folder of a relative path, and the form of a refusal: `FILE: SECTION.KEY: expected
..., got ...`, every problem on a line of its own. `gleaner.configs.schema` defines the settings;
`gleaner.configs.check` finds what is wrong with a value.
"""

import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from gleaner.configs import check
from gleaner.configs.schema import Config

PRESETS = Path(__file__).parent
"""Folder of the presets in the package."""

MAX_FILE_BYTES = 1 << 20
"""A settings file is a few kB; anything this large is another kind of file."""


class ConfigError(ValueError):
    """Settings that cannot be used. `problems` holds one finished line each; `str` joins them."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


def load(path: str | Path | None, sets: Sequence[str] = ()) -> Config:
    """Read the settings of a run.

    path: a TOML file, or the bare name of a preset ("quickstart"); None: the defaults. sets:
    `section.key=value` texts that win over the file; a value is read as TOML, else taken as text. Raises
    ConfigError with every problem found.
    """
    file = Path("settings") if path is None else _find(str(path))
    tree = {} if path is None else _read(file)
    typed: set[str] = set()  # keys given by --set
    found: list[str] = []
    for text in sets:
        problem = _set(tree, text, typed)
        if problem:
            found.append(f"{file}: {problem} (--set)")
    tree = check.listed(Config, tree)
    for key, problem in check.problems(Config, tree):
        # an unknown section that --set made is shown as it was typed
        shown = next((name for name in sorted(typed) if name == key or name.startswith(f"{key}.")), key)
        hint = f"; {check.suggestion(shown, Config)}" if problem == check.UNKNOWN else ""
        found.append(f"{file}: {shown}: {problem}{hint}{' (--set)' if shown in typed else ''}")
    if found:
        raise ConfigError(found)
    _default_paths(tree, Config, typed)
    for key in check.known_keys(Config):
        try:
            _anchor(tree, key, Path.cwd() if key in typed else file.resolve().parent)
        except (RuntimeError, ValueError, OSError) as problem:  # unknown `~user`, a NUL, a loop of links
            raise ConfigError([f"{file}: {key}: expected a path: {problem}"]) from problem
    return _convert(tree, str(file))


def dump(config: Config) -> str:
    """The settings as TOML, every key written out; `load` of it gives an equal Config."""
    return tomli_w.dumps(msgspec.to_builtins(config))


def from_tree(tree: Mapping[str, object], name: str) -> Config:
    """Settings from plain dicts (a history, a journal); `name` replaces a file's name in errors."""
    tree = check.listed(Config, tree)
    found = [f"{name}: {key}: {problem}" for key, problem in check.problems(Config, tree)]
    if found:
        raise ConfigError(found)
    return _convert(tree, name)


def presets() -> list[str]:
    """Names that `load` takes without a file."""
    return sorted(preset.stem for preset in PRESETS.glob("*.toml"))


def _convert(tree: Mapping[str, object], name: str) -> Config:
    try:
        return msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:  # a rule between two settings
        text, _, where = str(error).partition(" - at `$.")
        section = where.rstrip("`")
        raise ConfigError([f"{name}: {section}.{text}" if section else f"{name}: {text}"]) from error


def _find(path: str) -> Path:
    if path in presets() and not Path(path).exists():
        return PRESETS / f"{path}.toml"
    return Path(path).expanduser()


def _read(file: Path) -> dict[str, Any]:
    try:
        seen = file.stat()
        if not (stat.S_ISREG(seen.st_mode) or stat.S_ISDIR(seen.st_mode)):  # it may never end, or never begin
            raise ConfigError([f"{file}: is a device, pipe or socket; name a TOML file"])
        if seen.st_size > MAX_FILE_BYTES:
            raise ConfigError([f"{file}: larger than {MAX_FILE_BYTES} bytes; is it a settings file?"])
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        names = ", ".join(presets())
        raise ConfigError([f"{file}: no such file; name a TOML file or a preset ({names})"]) from error
    except IsADirectoryError as error:
        raise ConfigError([f"{file}: is a folder; name a TOML file in it"]) from error
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            [f"{file}: expected UTF-8 text, got other bytes at offset {error.start}"]
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{file}: not valid TOML: {error}"]) from error
    except RecursionError as error:
        raise ConfigError([f"{file}: not valid TOML: nested too deeply"]) from error


def _set(tree: dict[str, Any], text: str, typed: set[str]) -> str:
    """Put one `--set` into the tree; returns the problem with it, or ""."""
    key, equals, raw = (part.strip() for part in text.partition("="))
    parts = key.split(".")
    if not equals or not all(re.fullmatch(r"[A-Za-z0-9_-]+", part) for part in parts):
        return f"expected section.key=value, got {text!r}"
    kind = check.field_type(Config, parts)
    section = check.as_section(kind)
    if section:
        example = next(check.known_keys(section, f"{key}."))
        return f"{key}: is a section; set one of its keys, for example {example}"
    inner: Any = tree
    for part in parts[:-1]:
        inner = inner.setdefault(part, {})
        if isinstance(inner, list) and len(inner) == 1:
            inner = inner[0]
        if isinstance(inner, list):
            return f"{key}: the file has {len(inner)} sections [[{part}]]; change it there"
        if not isinstance(inner, dict):
            return f"{key}: {part} is no section"
    value = _value(raw)
    if kind is not None and not isinstance(value, str) and check.fits(raw, kind):
        value = raw  # a text setting keeps the typed text, even if it looks like a number
    inner[parts[-1]] = value
    typed.add(key)
    return ""


def _value(raw: str) -> object:
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return raw
    return parsed["value"] if parsed.keys() == {"value"} else raw


def _default_paths(
    tree: dict[str, Any], section: check.SectionType, typed: set[str], prefix: str = ""
) -> None:
    """Put in, in place, paths that are not given and have a default where their section is there."""
    for name, kind in check.fields_of(section).items():
        inner = check.as_section(kind)
        if inner and isinstance(tree.get(name), dict):
            _default_paths(tree[name], inner, typed, f"{prefix}{name}.")
        elif not inner and name not in tree and (path := check.default_path(kind)):
            if all(f"{prefix}{one}" in typed for one in tree):  # the file has no such section
                typed.add(f"{prefix}{name}")
            tree[name] = path


def _anchor(tree: dict[str, Any], key: str, folder: Path) -> None:
    """Make a path of this host absolute, in place."""
    if not check.is_host_path(check.field_type(Config, key.split("."))):
        return
    *sections, name = key.split(".")
    places: list[Any] = [tree]
    for section in sections:
        found = [place.get(section, {}) for place in places]
        places = [one for place in found for one in (place if isinstance(place, list) else [place])]
    for place in places:
        if place.get(name):
            place[name] = str((folder / Path(place[name]).expanduser()).resolve())
