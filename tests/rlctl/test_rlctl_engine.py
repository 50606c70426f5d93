"""`rlctl engine serve` as a process: it starts, serves and stops in order.

A killed server leaves nothing behind.
"""

import contextlib
import http.client
import json
import signal
import socket
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import FAILED, OK, USAGE

sys.path.insert(0, str(Path(__file__).parents[1] / "actors/engine/builtin_server"))
from served import WAIT_S, Process, make_folder

pytestmark = pytest.mark.realprocess
LONG = {
    "input_ids": [40, 41],
    "stream": True,
    "sampling_params": {"max_new_tokens": 1000, "ignore_eos": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models") / "a")


def test_server_starts_streams_and_stops_cleanly_at_sigterm(folder: Path) -> None:
    with Process(folder, "--grace", "0", "--weight-version", "w-1") as server:
        whole = server.post("/generate", text="hello", sampling_params={"max_new_tokens": 4})
        assert whole[0] == 200
        request = urllib.request.Request(f"{server.url}/generate", json.dumps(LONG).encode())
        with urllib.request.urlopen(request, timeout=WAIT_S) as stream:
            assert json.loads(stream.readline().removeprefix(b"data: "))["output_ids"]
            server.process.send_signal(signal.SIGTERM)
            lines = [line for line in stream.read().split(b"\n") if line]
        assert lines[-1] == b"data: [DONE]"
        last = json.loads(lines[-2].removeprefix(b"data: "))
        assert last["meta_info"]["finish_reason"] == {"type": "abort", "message": "its server was stopped"}
        n = len(last["output_ids"])
        assert last["meta_info"]["weight_versions"] == [{"version": "w-1", "start": 0, "end": n}]
        assert server.ends() == (OK, "")
        assert server.process.stdout is not None
        _free(server.url)


def test_killed_server_leaves_nothing_and_frees_its_port(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Process(folder) as server:
        process = psutil.Process(server.process.pid)
        assert process.children(recursive=True) == []
        held = [file.path for file in process.open_files()]
        where = server.url.removeprefix("http://")
        assert main(["engine", "serve", "--listen", where, "--model", str(folder)]) == FAILED
        errors = capsys.readouterr().err
        assert (errors.count("\n"), where in errors, "in use" in errors) == (1, True, True)
        request = urllib.request.Request(f"{server.url}/generate", json.dumps(LONG).encode())
        with urllib.request.urlopen(request, timeout=WAIT_S) as stream:
            assert stream.readline()
            server.process.kill()
            with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
                assert b"[DONE]" not in stream.read()
        server.process.wait(WAIT_S)
        _free(server.url)
        assert held == []


def _free(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, int(port)))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--model", "{tmp}/nowhere"], "nowhere is no directory"),
        (["--model", "{tmp}"], "tokenizer.json"),
        (["--model", "{tmp}", "--listen", "30000"], "ADDRESS:PORT"),
        (["--model", "{tmp}", "--listen", "0.0.0.0:0"], "--api-key-file"),
        (["--model", "{tmp}", "--slots", "0"], "--slots 0"),
        (["--model", "{tmp}", "--exact", "--threads", "2"], "one thread"),
        (["--model", "{tmp}", "--api-key-file", "{tmp}/none"], "none"),
    ],
)
def test_unservable_arguments_give_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    argv = [one.format(tmp=tmp_path) for one in arguments]
    assert main(["engine", "serve", "--listen", "127.0.0.1:0", *argv]) == USAGE
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert word in errors


def test_folder_without_weights_gives_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    assert main(["engine", "serve", "--listen", "127.0.0.1:0", "--model", str(folder)]) == USAGE
    errors = capsys.readouterr().err
    assert (errors.count("\n"), "model.safetensors" in errors) == (1, True)
