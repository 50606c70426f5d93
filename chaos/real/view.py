"""View of a running campaign: a panel in a terminal, or plain lines.

Owns the display. The nemesis sends the account, a few times a second; the plain form prints each event once.
"""

import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gleaner.chaos.real.campaign import Campaign
from gleaner.chaos.real.faults import places, words
from gleaner.chaos.real.nemesis import Account, FaultOutcome
from gleaner.chaos.real.report_schema import by_kind
from gleaner.chaos.real.verdict import counts
from gleaner.rlctl.quantity_format import duration

RECENT = 8
REDRAWS_PER_S = 4
MAX_CELLS = 150


class PlainView:
    """A line for each event; for logs and pipes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._doing = ""
        self._struck = 0
        self._done = 0
        self._violations = 0
        self._restarts = 0

    def __call__(self, account: Account) -> None:
        """Print the new events."""
        for one in account.struck[self._struck :]:
            self._say(account, f"break    {words(one.fault)}")
        self._struck = len(account.struck)
        while self._done < self._struck and _over(account.struck[self._done]):
            one = account.struck[self._done]
            self._done += 1
            self._say(account, f"{'missed' if one.missed else 'well':8} {words(one.fault)}: {outcome(one)}")
        for text in account.restarts[self._restarts :]:
            self._say(account, f"note     {text}")
        for text in account.violations[self._violations :]:
            self._say(account, f"VIOLATED {text}")
        self._restarts, self._violations = len(account.restarts), len(account.violations)
        if account.doing != self._doing and account.doing.startswith(
            ("starting", "letting", "taking", "check")
        ):
            self._say(account, account.doing)
        self._doing = account.doing

    def __enter__(self) -> "PlainView":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def _say(self, account: Account, text: str) -> None:
        self._out.write(f"{account.seen.at_s:7.1f} s  {text}\n")
        self._out.flush()


class LiveView:
    """A panel that changes in place. A context manager."""

    def __init__(self, campaign: Campaign, seed: int, out: TextIO) -> None:
        self._campaign = campaign
        self._title = f"{campaign.name}, seed {seed}"
        self._account = Account()
        self._last_change = time.monotonic()
        self._live = Live(
            console=Console(file=out), get_renderable=self._panel, refresh_per_second=REDRAWS_PER_S
        )

    def __call__(self, account: Account) -> None:
        """Take the present account."""
        self._account, self._last_change = account, time.monotonic()

    def __enter__(self) -> "LiveView":
        self._live.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self._live.__exit__(None, None, None)

    def _panel(self) -> RenderableType:
        account = self._account
        parts = [self._head(account), self._hosts(account), self._kinds(account), self._recent(account)]
        if account.violations:
            parts.append(
                Text("\n".join(text[:MAX_CELLS] for text in account.violations[-5:]), style="bold red")
            )
        return Panel(Group(*parts), title=self._title, border_style="red" if account.violations else "cyan")

    def _head(self, account: Account) -> RenderableType:
        now_s = account.seen.at_s + time.monotonic() - self._last_change
        fired = sum(counts(account)[0].values())
        wanted = f" of {self._campaign.faults}" if self._campaign.faults else ""
        left_s = max(0.0, self._campaign.minutes * 60 - now_s)
        line = Text.assemble(
            (f"{duration(now_s)}  ", "bold"),
            f"{fired}{wanted} faults   step {account.seen.steps}   {account.seen.tokens:,} tokens   ",
            (f"at most {duration(left_s)} more", "dim"),
        )
        lacking = "; ".join(account.lacking)
        return Group(
            line, Text(f"▶ {account.doing}", style="bold yellow"), Text(lacking[:MAX_CELLS], style="dim")
        )

    def _hosts(self, account: Account) -> RenderableType:
        """A row a host: its processes, red where they are gone, yellow where they are stopped."""
        now = account.struck[-1] if account.struck and not _over(account.struck[-1]) else None
        touched = places(now.fault) if now is not None else ()
        rows = Table.grid(padding=(0, 2))
        for host in _hosts_of(account, touched):
            cells = [
                Text(f"⚡{host}" if host in touched else f"  {host}", style="red" if host in touched else "")
            ]
            for name, pid in sorted(account.seen.processes.items()):
                if name.startswith(f"{host}/"):
                    stopped = name in account.seen.stopped
                    style = "yellow" if stopped else "green"
                    cells.append(Text(f"{name.partition('/')[2]} {pid}", style=style))
            rows.add_row(*cells)
        return rows

    def _kinds(self, account: Account) -> RenderableType:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("fault", "fired", "recovered", "p50", "p95"):
            table.add_column(name, justify="left" if name == "fault" else "right")
        for one in by_kind(account.struck):
            table.add_row(
                one.kind, str(one.fired), str(one.recovered), _s(one.recovered_p50_s), _s(one.recovered_p95_s)
            )
        return table

    def _recent(self, account: Account) -> RenderableType:
        lines = Text()
        for one in account.struck[-RECENT:]:
            style = "red" if one.lacking else "dim" if one.missed else ""
            lines.append(
                f"{one.began_s:7.1f} s  {words(one.fault)}: {outcome(one)}"[:MAX_CELLS] + "\n", style=style
            )
        return lines


def outcome(one: FaultOutcome) -> str:
    """The result as a short text."""
    if one.missed:
        return f"missed: {one.missed}"
    if one.lacking:
        return f"NOT RECOVERED: {', '.join(one.lacking)}"
    if one.recovered_s is None:
        return "recovering" if one.mended_s is not None else "broken"
    return f"recovered in {one.recovered_s:.1f} s"


def _over(one: FaultOutcome) -> bool:
    return bool(one.missed or one.lacking or one.recovered_s is not None)


def _hosts_of(account: Account, touched: Sequence[str]) -> list[str]:
    names = [*touched, *(name.partition("/")[0] for name in account.seen.processes)]
    return sorted(set(names), key=lambda name: (name != "head", name))


def _s(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"
