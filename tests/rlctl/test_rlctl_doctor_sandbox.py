"""The doctor's findings about the sandbox and the compilers in it."""

import dataclasses

import pytest

from gleaner.actors.reward.sandbox.detection import Host, NoSandbox
from gleaner.actors.reward.sandbox.port import Isolation
from gleaner.actors.reward.verifiers import compilers
from gleaner.actors.reward.verifiers.compilers import LANGUAGES
from gleaner.rlctl import doctor


def row(monkeypatch: pytest.MonkeyPatch, found: Host | NoSandbox) -> doctor.Row:
    def detect() -> Host:
        if isinstance(found, NoSandbox):
            raise found
        return found

    monkeypatch.setattr(doctor, "detect", detect)
    return next(row for row in doctor._isolation() if row.what == "sandbox")


def test_doctor_shows_working_isolation_and_why_not_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    best = row(monkeypatch, Host(Isolation.NAMESPACES, 7, "/usr/bin/bwrap"))
    assert (best.verdict, best.found) == ("ok", "namespaces, Landlock 7")
    why = "namespaces: bubblewrap is not installed (apt install bubblewrap)"
    other = row(monkeypatch, Host(Isolation.LANDLOCK, 4, "", why))
    assert (other.verdict, other.found) == ("ok", f"landlock, Landlock 4 (not better: {why})")


def test_doctor_reports_that_scoring_needs_a_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none = row(monkeypatch, NoSandbox("no sandbox works on this host"))
    assert none.verdict == "missing"
    assert "Landlock" in none.todo


def test_doctor_lists_compilers_and_names_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gcc = dataclasses.replace(LANGUAGES["c"], compile=("no-such-gcc", "{output}"), remedy="apt install gcc")
    monkeypatch.setattr(compilers, "LANGUAGES", {"c": gcc})
    (found,) = doctor._compilers()
    words = "no-such-gcc is not installed here; apt install gcc (only tasks in c need it)"
    assert (found.what, found.verdict, found.found) == ("compiler c", "ok", words)
