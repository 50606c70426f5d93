"""The table of results, which every benchmark prints and writes in one form."""

import json
import sys

import pytest

from bench import table
from bench.table import Row


def test_rows_are_printed_and_written_with_their_ratio(tmp_path, monkeypatch, capsys) -> None:
    file = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["bench", "--json", str(file)])
    table.run("demo", "A demonstration", lambda: [Row("walk", "km/h", 6.0, "run", 12.0)])
    assert "walk" in capsys.readouterr().out
    assert json.loads(file.read_text()) == [
        {"what": "walk", "unit": "km/h", "ours": 6.0, "peer": "run", "peer_value": 12.0, "ratio": 0.5}
    ]


@pytest.mark.filterwarnings("error")
def test_peer_without_measurement_has_no_ratio(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["bench"])
    table.run("demo", "A demonstration", lambda: [Row("walk", "km/h", 6.0, "run", 0.0)])
    assert "nan" in capsys.readouterr().out
