"""The command line of bubblewrap: also checked where bubblewrap is not installed."""

from pathlib import Path

import pytest

from gleaner.actors.reward.sandbox import shells


def place(words: list[str], *part: str) -> int:
    """Where this part of a command line begins; -1: nowhere."""
    found = (at for at in range(len(words)) if words[at : at + len(part)] == list(part))
    return next(found, -1)


def test_readable_paths_are_bound_read_only_below_folders_that_others_may_search(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    words = shells._bwrap_words([str(inner), "/usr"])
    assert place(words, "--ro-bind", "/usr", "/usr") > 0
    folder, bound = (
        place(words, "--perms", "0755", "--dir", str(inner.parent)),
        place(words, "--ro-bind", str(inner), str(inner)),
    )
    assert 0 < folder < bound
    assert not {"--bind", "--dev-bind"} & set(words), "nothing of the host may be written"


def test_linked_system_folder_stays_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "bin"
    link.symlink_to("usr/bin")
    monkeypatch.setattr(shells, "SYSTEM", (str(link),))
    words = shells._bwrap_words([str(link)])
    assert place(words, "--symlink", "usr/bin", str(link)) > 0
    assert place(words, "--ro-bind", str(link), str(link)) == -1
