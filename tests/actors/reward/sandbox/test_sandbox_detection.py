"""Detection of a host's isolation: the better mode is tried first; scoring fails if none works."""

import tempfile
from pathlib import Path

import pytest

from gleaner.actors.reward.sandbox import detection
from gleaner.actors.reward.sandbox.detection import Host, NoSandbox, detect
from gleaner.actors.reward.sandbox.port import Isolation
from gleaner.actors.reward.verifiers.answers import AnswerVerifier
from gleaner.actors.reward.verifiers.port import VerifierSpec

MISSING = "bubblewrap is not installed (apt install bubblewrap)"


def found(monkeypatch: pytest.MonkeyPatch, **works: bool) -> None:
    def tried(isolation: Isolation) -> tuple[Host | None, str]:
        return (Host(isolation, 7), "") if works.get(isolation.value) else (None, f"no {isolation.value}")

    monkeypatch.setattr(detection, "_tried", tried)


def test_namespaces_are_preferred_to_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, namespaces=True, landlock=True)
    assert detect() == Host(Isolation.NAMESPACES, 7)
    assert detect("landlock").isolation is Isolation.LANDLOCK


def test_landlock_replaces_failing_namespaces_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, landlock=True)
    assert detect() == Host(Isolation.LANDLOCK, 7, "", "namespaces: no namespaces")
    with pytest.raises(NoSandbox, match="namespaces: no namespaces"):
        detect("namespaces")


def test_nothing_is_scored_without_a_working_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch)
    with pytest.raises(
        NoSandbox, match="nothing that a model wrote .*: no namespaces; landlock: no landlock"
    ):
        AnswerVerifier(VerifierSpec(name="reasoning-gym", task="spell_backward")).open()


def test_missing_bubblewrap_is_reported_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection.shutil, "which", lambda name: None)
    host, why = detection._tried.__wrapped__(Isolation.NAMESPACES)
    assert (host, why) == (None, MISSING)


def test_other_machines_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection.platform, "machine", lambda: "riscv64")
    host, why = detection._tried.__wrapped__(Isolation.LANDLOCK)
    assert (host, why) == (None, "needs Linux on x86_64 or aarch64, this is Linux on riscv64")


def test_each_root_sandbox_has_its_own_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(detection.os, "geteuid", lambda: 0)
    first, second = Host(Isolation.LANDLOCK, 7), Host(Isolation.LANDLOCK, 7)
    uids = [first.confinement([]).uid, second.confinement([]).uid]
    assert len(set(uids)) == 2
    assert all(uid in detection.UIDS for uid in uids)
    first.release()
    assert Host(Isolation.LANDLOCK, 7).confinement([]).uid == uids[0]
    second.release()


@pytest.mark.parametrize(
    ("folder", "file", "of_folder", "of_file"),
    [
        (0o755, 0o644, True, True),
        (0o711, 0o644, True, True),  # searched, not listed: enough to read what is in it
        (0o744, 0o644, False, False),
        (0o755, 0o640, True, False),
        (0o755, 0o711, True, False),  # a file that others may run and not read
    ],
)
def test_path_is_reachable_when_others_may_search_its_folders_and_read_it(
    folder: int, file: int, of_folder: bool, of_file: bool
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as root:  # pytest's own folders are private
        Path(root).chmod(0o755)
        inner = Path(root) / "inner"
        inner.mkdir()
        content = inner / "content"
        content.touch()
        content.chmod(file)
        inner.chmod(folder)
        assert detection._reachable(str(inner)) is of_folder
        assert detection._reachable(str(content)) is of_file
