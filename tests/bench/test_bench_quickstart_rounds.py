"""Bench of the quickstart with rounds: its verdict, and its table."""

import pytest
from rich.console import Console

from bench.quickstart.command_cost import Cost
from bench.quickstart.contenders import Outcome
from bench.quickstart.rounds import main, table, within

COST = Cost(30.0, 5.0, 40.0, 500.0, 12)


def found(plain: list[float], rounds: list[float]) -> dict[str, list[Outcome]]:
    return {
        mode: [Outcome([1.0, 1.5], 0.2, reward, COST) for reward in rewards]
        for mode, rewards in (("off", plain), ("tail", rounds))
    }


@pytest.mark.parametrize(
    ("rounds", "inside"), [([0.9, 0.94], True), ([0.99, 0.97], False), ([0.7, 0.8], False)]
)
def test_mean_with_rounds_is_compared_with_the_range_of_plain_runs(rounds: list[float], inside: bool) -> None:
    assert within(found([0.95, 0.90], rounds)) is inside


def test_table_has_a_row_for_each_run_and_mode() -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table(found([0.943, 0.935], [0.937, 0.936])))
    shown = captured.get()
    assert all(text in shown for text in ("0.943", "0.935", "0.937", "0.936", "mean", "2.5"))


def test_no_seed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", "0"])
    assert "expected 1 or more" in capsys.readouterr().err
