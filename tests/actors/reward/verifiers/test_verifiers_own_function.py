"""`OwnFunction`: where a user's function is imported from."""

import sys
from pathlib import Path

import pytest

from gleaner.actors.reward.verifiers.own_function import OwnFunction

SOURCE = "def score(prompt, response, answer, info):\n    return 1.0\n"


def test_folder_of_a_function_is_searched_first_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "score_in_a_folder.py").write_text(SOURCE)
    before = [*sys.path]
    monkeypatch.setattr(sys, "path", [*before])
    for _ in range(2):
        OwnFunction("score_in_a_folder:score", str(tmp_path), "own").close()
    assert sys.path == [str(tmp_path), *before]


def test_installed_function_is_not_searched_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "score_that_is_installed.py").write_text(SOURCE)
    searched = [*(entry for entry in sys.path if entry), str(tmp_path)]
    monkeypatch.setattr(sys, "path", [*searched])
    OwnFunction("score_that_is_installed:score", "", "own").close()
    assert sys.path == searched
