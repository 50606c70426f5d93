"""The data carrier: streams and bulk transfer open no sockets themselves."""

import ast
from pathlib import Path

import pytest

from gleaner.transport import bulk_pull, bulk_server, stream_receiver, stream_sender

SOCKETS = {"socket", "zmq", "os", "mmap", "secrets", "random", "time"}


@pytest.mark.parametrize("module", [bulk_pull, bulk_server, stream_receiver, stream_sender])
def test_streams_and_bulk_transfer_open_no_sockets(module: object) -> None:
    source = Path(module.__file__).read_text()  # type: ignore[attr-defined]
    found = {
        name.removeprefix("gleaner.").split(".")[0]
        for node in ast.walk(ast.parse(source))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert "transport" in found
    assert found & SOCKETS == set()
