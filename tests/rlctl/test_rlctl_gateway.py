"""`rlctl gateway`: the settings of [gateway] from a file, `--set` and options."""

from pathlib import Path

import msgspec
import pytest
import tomli_w

from gleaner.configs.schema import Gateway
from gleaner.rlctl.__main__ import main, parser
from gleaner.rlctl.commands.gateway import LISTEN, settings_of
from gleaner.rlctl.errors import USAGE, CommandError

ALL = Gateway(
    listen="127.0.0.1:4",
    api_keys="/keys",
    control_keys="/control",
    hosts=["head"],
    open=True,
    model_name="m",
    max_concurrent=7,
    max_body_bytes=4096,
    deadline_s=5.0,
    max_deadline_s=50.0,
    heartbeat_s=2.0,
    version_wait_s=3.0,
    buffer_tokens=9,
    server_info={"dtype": "auto"},
    routed_experts=True,
)


def settings(*words: str) -> Gateway:
    return settings_of(parser(["gateway"]).parse_args(["gateway", *words])).gateway


def test_every_setting_is_taken_from_file_and_set(tmp_path: Path) -> None:
    tree = msgspec.to_builtins(ALL)
    changed = {name for name, value in tree.items() if value != msgspec.to_builtins(Gateway())[name]}
    assert changed == set(Gateway.__struct_fields__), "the example has every setting"
    file = tmp_path / "gateway.toml"
    file.write_text(tomli_w.dumps({"gateway": tree}))
    assert settings("--config", str(file)) == ALL
    texts = [
        tomli_w.dumps({"v": value}).removeprefix("v = ")
        for value in tree.values()
        if value != {"dtype": "auto"}
    ]
    names = [name for name in tree if name != "server_info"]
    words = [
        word for name, text in zip(names, texts, strict=True) for word in ("--set", f"gateway.{name}={text}")
    ]
    assert settings(*words, "--set", "gateway.server_info.dtype=auto") == ALL


def test_options_override_set_and_set_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("[gateway]\nlisten = '127.0.0.1:1'\ndeadline_s = 1.0\nmax_concurrent = 1\n")
    words = ["--config", str(file), "--set", "gateway.deadline_s=2.0", "--set", "gateway.max_concurrent=2"]
    found = settings(*words, "--deadline", "3", "--api-keys", "k")
    assert (found.listen, found.max_concurrent, found.deadline_s) == ("127.0.0.1:1", 2, 3.0)
    assert found.api_keys == str(Path("k").absolute())
    assert settings().listen == LISTEN


def test_job_setting_is_refused() -> None:
    with pytest.raises(CommandError, match=r"\[engine\]: of a job"):
        settings("--set", "engine.threads=3")


def test_misspelt_setting_error_names_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "--engine-url", "h:1", "--set", "gateway.max_concurent=3"]) == USAGE
    assert "did you mean gateway.max_concurrent?" in capsys.readouterr().err
