"""The files of `deploy/`: their options, directives, keys and values exist."""

import base64
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from gleaner.nodeagent.__main__ import parse
from gleaner.rlctl.__main__ import main as rlctl
from gleaner.transport.keys import NodeKeys

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "gleaner"
SCRIPTS = sorted([*DEPLOY.rglob("*.sbatch"), *DEPLOY.rglob("*.sh")])
SBATCH = {
    "job-name", "requeue", "no-requeue", "open-mode", "nodes", "ntasks", "cpus-per-task", "gpus-per-node",
    "time", "signal", "output",
}  # fmt: skip
"""Options of sbatch (Slurm 22.05 and later) that a script may use."""


def commands(text: str) -> list[list[str]]:
    """Every `nodeagent start ...` of a script, with its lines joined and its variables filled in."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = []
    for line in joined.splitlines():
        if line.lstrip().startswith("#") or "nodeagent" not in line:
            continue
        words = line[line.index("nodeagent") :].partition(" start ")[2]
        words = re.split(r" &$| \|\| ", words)[0]
        for name, value in {"grace": "30", "GLEANER_GRACE": "30", "GLEANER_NOTICES": "auto"}.items():
            words = words.replace(f"${name}", value)
        words = re.sub(r"\$\([^)]*\)", "name", words)
        words = re.sub(r"\$\{?\w+\}?", "tcp://10.0.0.1:7700", words)
        found.append(["start", *shlex.split(words)])
    return found


def option_of_chart() -> list[str]:
    text = (CHART / "templates" / "_helpers.tpl").read_text()
    return [option for option in re.findall(r"- (--[a-z-]+)=", text)]


@pytest.mark.parametrize(
    "file", ["slurm/cluster.sbatch", "slurm/preemptible.sbatch", "skypilot/preemptible.yaml"]
)
def test_every_node_agent_command_is_understood(file: str) -> None:
    found = commands((DEPLOY / file).read_text())
    assert len(found) == (2 if "cluster" in file else 1)
    for words in found:
        args = parse(words)
        assert args.keys is not None
        assert args.grace == 30.0
        assert args.bulk == ("loopback" if args.role == "head" else "clear")


def test_chart_uses_agent_options_and_its_grace() -> None:
    options = option_of_chart()
    assert {"--role", "--listen", "--join", "--keys", "--grace", "--notices", "--metrics"} <= set(options)
    values = {"--role": "preemptible", "--notices": "gcp", "--bulk": "clear", "--grace": "30"}
    words = [f"{option}={values.get(option, 'tcp://10.0.0.1:7700')}" for option in dict.fromkeys(options)]
    assert parse(["start", *words]).notices == "gcp"
    text = (CHART / "templates" / "_helpers.tpl").read_text()
    assert "terminationGracePeriodSeconds: {{ $values.graceSeconds }}" in text
    assert "--grace={{ $values.graceSeconds }}" in text


def test_values_schema_knows_exactly_the_values() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = (CHART / "values.yaml").read_text()
    known = set(schema["properties"]) - {"global"}
    assert set(re.findall(r"^([a-zA-Z]+):", values, re.MULTILINE)) == known
    for name in ("head", "reserved", "preemptible"):
        part = re.split(rf"^{name}:\n", values, flags=re.MULTILINE)[1]
        part = re.split(r"^\S", part, flags=re.MULTILINE)[0]
        assert set(re.findall(r"^  ([a-zA-Z]+):", part, re.MULTILINE)) == set(
            schema["properties"][name]["properties"]
        )
    used = set(
        re.findall(r"\.Values\.([a-zA-Z]+)", "".join(p.read_text() for p in CHART.rglob("templates/*")))
    )
    assert used <= known


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_parses_in_bash(script: Path) -> None:
    assert len(SCRIPTS) >= 3
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=60.0)


@pytest.mark.parametrize("name", ["cluster", "preemptible"])
def test_slurm_directives_are_sbatch_options_before_first_command(name: str) -> None:
    lines = (DEPLOY / "slurm" / f"{name}.sbatch").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    directives = [line for line in lines if line.startswith("#SBATCH")]
    assert directives == [line for line in lines[:first] if line.startswith("#SBATCH")]
    options = [re.fullmatch(r"#SBATCH --([a-z-]+)(=\S+)?", line) for line in directives]
    assert all(option is not None and option[1] in SBATCH for option in options)
    assert ("#SBATCH --requeue" in directives) == (name == "preemptible")


def test_keys_pass_unchanged_through_secret_and_init_container(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    assert rlctl(["keygen", str(keys), "--node", "head", "--node", "spot", "--node", "laptop"]) == 0
    made = subprocess.run(
        [str(DEPLOY / "key_secrets.sh"), str(keys), "spot"],
        capture_output=True,
        text=True,
        timeout=60.0,
        check=True,
    ).stdout
    assert "name: gleaner-keys-spot" in made
    given, copied = tmp_path / "given", tmp_path / "copied"
    given.mkdir()
    for name, value in re.findall(r"^  (\S+): (\S{20,})$", made, re.MULTILINE):
        (given / name).write_bytes(base64.b64decode(value))
        (given / name).chmod(0o440)  # as the kubelet mounts them with an fsGroup
    text = (CHART / "templates" / "_helpers.tpl").read_text()
    script = text.partition("- -euc\n        - |\n")[2].partition("      securityContext:")[0]
    script = script.replace("/keys-given", str(given)).replace("/keys/", f"{copied}/")
    subprocess.run(["/bin/sh", "-euc", script], check=True, timeout=60.0)
    assert NodeKeys.load(copied) == NodeKeys.load(keys / "spot")


def test_secret_from_a_non_key_directory_is_refused(tmp_path: Path) -> None:
    refused = subprocess.run(
        [str(DEPLOY / "key_secrets.sh"), str(tmp_path), "head"],
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )
    assert refused.returncode == 2
    assert "no key directory" in refused.stderr
    assert refused.stdout == ""
