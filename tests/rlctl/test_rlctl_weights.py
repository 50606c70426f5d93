"""`rlctl weights`: conversion between checkpoints and published versions."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gleaner.actors.weights.control.file import PageWriter
from gleaner.actors.weights.control.page import Page
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import FAILED, NOTHING, OK, USAGE


def checkpoint(folder: Path, step: int) -> Path:
    """A checkpoint of which a little differs from step to step."""
    folder.mkdir(parents=True)
    weights = np.arange(4096, dtype=np.float16)
    weights[: 5 * step] = -1
    save_file({"w": weights.reshape(64, 64), "b": np.ones(3, np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"vocab_size": 7}))
    return folder


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Versions 0 to 2 of a run, the first one whole."""
    steps = [checkpoint(tmp_path / f"step-{step}", step) for step in range(3)]
    folder = tmp_path / "shared"
    assert main(["weights", "export", str(steps[0]), str(folder), "--version", "0"]) == OK
    for step in (1, 2):
        arguments = [str(steps[step]), str(folder), "--version", str(step), "--base", str(steps[step - 1])]
        assert main(["weights", "export", *arguments]) == OK
    return folder


def test_exported_checkpoint_is_imported_unchanged(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    base = ["--base", str(tmp_path / "step-0")]
    assert main(["weights", "import", str(shared), str(tmp_path / "merged"), *base, "--json"]) == OK
    result = json.loads(capsys.readouterr().out)
    assert (result["version"], result["deltas"], result["tensors"]) == (2, 2, 2)
    have, want = (load_file(tmp_path / name / "model.safetensors") for name in ("merged", "step-2"))
    assert {name: (array.dtype, array.tobytes()) for name, array in have.items()} == {
        name: (array.dtype, array.tobytes()) for name, array in want.items()
    }
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["vocab_size"] == 7


def test_only_changes_are_exported(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    third = checkpoint(tmp_path / "step-3", 3)
    arguments = [str(third), str(shared), "--version", "3", "--base", str(tmp_path / "step-2"), "--json"]
    assert main(["weights", "export", *arguments]) == OK
    result = json.loads(capsys.readouterr().out)
    assert (result["whole"], result["tensors"], result["changed"]) == (False, 2, 1)
    assert result["bytes"] < result["image_bytes"] / 4
    assert not list(shared.glob(".*")), "no temporary file is left"


def test_wrong_base_is_reported_and_creates_nothing(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = checkpoint(tmp_path / "other", 100)
    merged = tmp_path / "merged"
    assert main(["weights", "import", str(shared), str(merged), "--base", str(other)]) == FAILED
    assert "base is not the version" in capsys.readouterr().err
    assert not merged.exists()
    assert main(["weights", "import", str(tmp_path / "nothing"), str(merged)]) == FAILED
    assert "has no version" in capsys.readouterr().err


def test_existing_version_or_checkpoint_is_not_overwritten(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tmp_path / "step-1"
    assert main(["weights", "export", str(first), str(shared), "--version", "2"]) == FAILED
    assert "never written again" in capsys.readouterr().err
    assert main(["weights", "import", str(shared), str(first)]) == USAGE


def test_pages_show_served_versions_and_non_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "pages", str(tmp_path)]) == NOTHING
    writer = PageWriter(tmp_path / "engine.control")
    served = Page().begun(3).preparing(7, bytes(32)).loading().loaded()
    writer.write(served.preparing(8, b"r" * 32).loading().failed("the image lacks lm_head.weight"))
    capsys.readouterr()
    assert main(["weights", "pages", str(tmp_path)]) == OK
    shown = " ".join(capsys.readouterr().out.split())
    assert "load failed 7 - 8 (1x)" in shown
    assert "the image lacks lm_head.weight" in shown
    writer.close()
    assert main(["weights", "pages", str(tmp_path), "--json"]) == OK
    (page,) = json.loads(capsys.readouterr().out)["pages"]
    assert (page["version"], page["failed_version"], page["alive"]) == (7, 8, False)
    assert page["failed_root"] == (b"r" * 32).hex()
    (tmp_path / "torn.control").write_bytes(b"GLEANCP1")
    assert main(["weights", "pages", str(tmp_path), "--json"]) == FAILED
    result = capsys.readouterr()
    assert len(json.loads(result.out)["pages"]) == 1, "a broken page hides no other"
    assert "torn.control: 8 bytes, a control page has 512" in result.err
