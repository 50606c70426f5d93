"""Source files of a reward function: its module and that module's imports, nothing else."""

from pathlib import Path

import pytest

from gleaner.actors.reward.verifiers import function_sources
from gleaner.actors.reward.verifiers.function_sources import TooManySources, sources


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def found(folder: Path, module: str = "mine") -> set[str]:
    return {str(Path(place).relative_to(folder)) for place in sources(module, str(folder))}


def test_module_and_its_imports_are_found_alone(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "mine.py": "import json, near\ndef f():\n    from far import x\n    import torch\n",
            "near.py": "import mine\n",
            "far/__init__.py": "from . import inner\nimport deep\n",
            "far/inner.py": "",
            "deep.py": "",
            "other.py": "",
            "keys.txt": "",
            "far2/__init__.py": "",
        },
    )
    assert found(tmp_path) == {"mine.py", "near.py", "far", "deep.py"}


def test_package_is_found_with_or_without_an_init(tmp_path: Path) -> None:
    write(tmp_path, {"a/b/c.py": "import near\n", "near.py": "", "words/list.txt": ""})
    assert found(tmp_path, "a.b.c") == {"a", "near.py"}


def test_unparsable_file_is_left_to_its_import(tmp_path: Path) -> None:
    write(tmp_path, {"mine.py": "import near\ndef f(:\n", "near.py": ""})
    assert found(tmp_path) == {"mine.py"}


def test_installed_modules_stay_where_they_are(tmp_path: Path) -> None:
    assert sources("no_such_package_at_all", str(tmp_path)) == []
    assert [Path(place).name for place in sources("msgspec.json", str(tmp_path))] == ["msgspec"]


def test_module_with_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_sources, "MAX_FILES", 2)
    write(tmp_path, {f"a/{number}.py": "" for number in range(3)})
    with pytest.raises(TooManySources, match="more than 2 source files"):
        found(tmp_path, "a")
