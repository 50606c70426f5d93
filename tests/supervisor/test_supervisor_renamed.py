"""Old names of public modules work, and their import names the replacement once."""

import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest

OLD = {
    "gleaner.rlctl.blocking": ("gleaner.rlctl.blocking_publisher", {"Publisher": "Publisher"}),
    "gleaner.rlctl.publishing_home": ("gleaner.rlctl.transfer_agent", {"CannotPublish": "CannotPublish"}),
    "gleaner.rlctl.publishing_parts": (
        "gleaner.rlctl.sharded_publisher",
        {"OwnParts": "OwnParts", "Ranks": "Ranks"},
    ),
    "gleaner.rlctl.simulated": ("gleaner.rlctl.simulated_evidence", {"evidence": "evidence"}),
    "gleaner.sim.breaking": ("gleaner.sim.fault_injector", {"Breaking": "FaultInjector"}),
    "gleaner.sim.setting": ("gleaner.sim.run_setup", {"Setting": "RunSetup"}),
    "gleaner.supervisor.stage": ("gleaner.supervisor.actor_test_kit", {"Stage": "ActorTestKit"}),
}
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("old", OLD)
def test_old_module_works_and_warns_once_at_the_importing_line(old: str) -> None:
    new, names = OLD[old]
    script = compile(f"\nimport {old}\n", "users_script.py", "exec")
    sys.modules.pop(old, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(script, {})
        exec(script, {})
    (warning,) = [it for it in caught if it.filename == "users_script.py"]
    assert (warning.category, warning.lineno) == (DeprecationWarning, 2)
    assert str(warning.message).startswith(f"{old} was renamed: import {new}")
    for before, after in names.items():
        assert getattr(import_module(old), before) is getattr(import_module(new), after)
        assert before == after or f"{before} is {after} there" in str(warning.message)


def test_every_old_module_is_listed_with_its_replacement() -> None:
    modules = {
        ".".join(("gleaner", *path.relative_to(ROOT).with_suffix("").parts))
        for package in ("actors", "nodeagent", "rlctl", "sim", "supervisor", "transport")
        for path in (ROOT / package).rglob("*.py")
        if "report(__name__, " in path.read_text(encoding="utf-8")
    }
    assert modules == set(OLD)
    page = (ROOT / "docs" / "api_client.md").read_text(encoding="utf-8")
    for old, (new, _) in OLD.items():
        assert f"| `{old}` | `{new}` |" in page
