"""The chaos campaign that every change must pass, on real processes.

It has at least ten faults of six kinds. In every run of the tests it has five.
"""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from gleaner.chaos.netns import why_not
from gleaner.chaos.orphans import naming

pytestmark = [
    pytest.mark.alone,
    pytest.mark.realprocess,
    pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}"),
    pytest.mark.timeout(1200),
]
SEED = 1


def run_campaign(campaign: str, folder: Path) -> dict[str, Any]:
    """Runs the campaign of that name. Returns its results."""
    file, root = folder / "results.json", folder / "out"
    argv = [
        sys.executable,
        "-m",
        "gleaner.chaos.commands.chaos",
        "run",
        campaign,
        "--seed",
        str(SEED),
        "--plain",
    ]
    argv += ["--without", "impossible", "--json", str(file), "--out", str(root)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results: dict[str, Any] = json.loads(file.read_text())
    if results["without"]:
        warnings.warn(f"not tried on this machine: {done.stderr}", stacklevel=1)
    assert (results["ok"], results["violations"], results["invalid"]) == (True, [], [])
    fired = [one for one in results["faults"] if not one["missed"]]
    assert all(one["recovered_s"] is not None and one["evidence"] for one in fired)
    assert {one["kind"]: one["recovered"] for one in results["recovery"] if one["fired"]} == results["fired"]
    assert all(job["exit_code"] == 0 and not job["violations"] for job in results["jobs"])
    assert "every invariant held" in done.stdout
    assert "<svg" in (root / "chaos.html").read_text()
    assert list(naming(root)) == []
    return results


def test_short_campaign_holds_invariants_under_five_faults(tmp_path: Path) -> None:
    results = run_campaign("real-short", tmp_path)
    assert sum(results["fired"].values()) == 5
    assert len(results["fired"]) == 5
    assert results["paths"]["one_for_one"] >= 1


@pytest.mark.long
def test_ci_campaign_holds_invariants_under_ten_faults(tmp_path: Path) -> None:
    results = run_campaign("real-ci", tmp_path)
    assert sum(results["fired"].values()) >= 10
    assert len(results["fired"]) >= 6
    assert results["paths"]["one_for_one"] >= 1
