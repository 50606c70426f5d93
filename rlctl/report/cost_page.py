"""Cost section of a run's report: by price class, use and step, with waste.

Owns the figures, their wording and the picture; `templates/cost.html.jinja` has the layout. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gleaner.rlctl.cost_account import Account, PriceClass
from gleaner.rlctl.page_templates import Row
from gleaner.rlctl.report.model import Report, Story
from gleaner.rlctl.report.plots import COLOURS, MAX_BARS, svg, thin

CAUSES = {
    "aborted": "of groups that were surplus when their batch had enough",
    "dropped": "of uniform groups, which give no gradient",
    "lost": "of samples that were made again, because their verifier failed",
    "stale": "made under weights that were too old",
    "generated_twice": "dropped: they came after their request had gone elsewhere",
}
WASTE_COLOURS = {
    "aborted": "kill", "dropped": "notice", "lost": "join", "stale": "accent", "generated_twice": "muted",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CostSection:
    """Values of the section. classes: a row for each price class, and their total; plot: None before the
    first step has ended."""

    currency: str
    classes: Sequence[Row]
    at_reserved_price: str
    figures: Sequence[Row]
    plot: str | None


def cost_section(report: Report, story: Story) -> CostSection | None:
    """The section; None where the settings, which have the prices, are missing."""
    account, cost = report.account, report.cost
    if account is None or cost is None:
        return None
    total = (
        "Total",
        f"{account.reserved.host_hours + account.preemptible.host_hours:.4f}",
        f"{account.reserved.gpu_hours + account.preemptible.gpu_hours:.4f}",
        "",
        f"{account.cost:.4f}",
        "",
    )
    return CostSection(
        currency=account.currency,
        classes=[
            _class_row("Reserved", account.reserved),
            _class_row("Preemptible", account.preemptible),
            total,
        ],
        at_reserved_price=f"{cost.at_reserved_price:.4f} {cost.currency}",
        figures=_figures(account),
        plot=cost_plot(account, story) if account.each_step else None,
    )


def _class_row(name: str, one: PriceClass) -> Row:
    whole = sum(one.parts_hours.values())
    went = ", ".join(f"{part} {hours / whole:.0%}" for part, hours in one.parts_hours.items() if whole)
    price = "" if one.per_gpu_hour is None else f"{one.per_gpu_hour:.4f}"
    return name, f"{one.host_hours:.4f}", f"{one.gpu_hours:.4f}", price, f"{one.cost:.4f}", went


def _figures(account: Account) -> list[Row]:
    rows: list[Row] = []
    if account.per_step is not None:
        rows.append(
            (f"{account.currency} a step", f"{account.per_step:.4f}", f"mean of {account.steps} steps")
        )
    if account.per_million_tokens is not None:
        trained = f"{account.trained:,} were trained"
        price = f"{account.per_million_tokens:,.4f}"
        rows.append((f"{account.currency} a million trained tokens", price, trained))
    for cause, count in account.wasted.items():
        rows.append((f"Tokens wasted: {cause.replace('_', ' ')}", count, CAUSES.get(cause, "")))
    if account.wasted_share is not None:
        rows.append(("Wasted share", f"{account.wasted_share:.2%}", "of all tokens that were generated"))
    return rows


def cost_plot(account: Account, story: Story) -> str:
    """The cost of each step, and the waste so far."""
    looks = [look for look in story.samples if look.wasted]
    causes = list(dict.fromkeys(cause for look in looks for cause in look.wasted))

    def draw(made: Any) -> None:
        panels = made.subplots(2 if causes else 1, 1, squeeze=False)[:, 0]
        reserved = thin([step.reserved for step in account.each_step], MAX_BARS)
        preemptible = thin([step.preemptible for step in account.each_step], MAX_BARS)
        numbers = thin([float(step.step) for step in account.each_step], MAX_BARS)
        width = 0.8 * (numbers[1] - numbers[0] if len(numbers) > 1 else 1.0)
        panels[0].bar(numbers, reserved, width, color=COLOURS["reserved"], label="reserved")
        panels[0].bar(numbers, preemptible, width, bottom=reserved, color=COLOURS["preemptible"],
                      label="preemptible")  # fmt: skip
        panels[0].set_ylabel(account.currency)
        panels[0].set_xlabel("step")
        panels[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
        for cause in causes:
            values = thin([float(look.wasted.get(cause, 0)) for look in looks])
            panels[1].plot(thin([look.t_s for look in looks]), values, label=cause.replace("_", " "),
                           color=COLOURS[WASTE_COLOURS.get(cause, "ink")], linewidth=1.6)  # fmt: skip
        if causes:
            panels[1].set_ylabel("tokens wasted")
            panels[1].set_xlabel("second of the run")
            panels[1].legend(loc="upper left", ncols=len(causes))

    return svg("cost", "Cost of each step and tokens wasted", 5.0 if causes else 2.7, draw)
