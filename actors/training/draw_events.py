"""Draw events: which problems a job draws, in the controller's journal.

Owns the shapes, and the port of the order that they change: `problem_order` of a job without rounds,
`round_draws` of one with them.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from gleaner.actors.training.draw_snapshots import DrawSnapshot
from gleaner.actors.training.rounds import Shape
from gleaner.supervisor import Message


class Drawn(Message, frozen=True):
    """Journaled: the problems of the groups of `batch` from `first` on. The first `returned` of them had been
    drawn before and aborted; `cursor` counts the new ones so far, these included."""

    batch: str
    first: int
    indices: tuple[int, ...]
    returned: int
    cursor: int


class Redrawn(Message, frozen=True):
    """Journaled: no engine accepts the previous problems of these groups of `batch`; these replace them.
    `returned` and `cursor` as in `Drawn`."""

    batch: str
    groups: tuple[int, ...]
    indices: tuple[int, ...]
    returned: int
    cursor: int


class Returned(Message, frozen=True):
    """Journaled: these problems were drawn for `batch` and aborted; they are drawn again, before new ones."""

    batch: str
    indices: tuple[int, ...]


class RoundDrawn(Message, frozen=True):
    """Journaled: the draws of the groups of `batch` from `first` on, in a round of this kind with so many
    samples each; `cursor` counts the new draws so far, these included. The others are deferred draws, which
    stay in the queue until the round is settled. held: new draws that go to the queue without a launch.
    spare: of the groups, those that a short round launches because so many uniform ones are expected."""

    batch: str
    kind: str
    samples: int
    first: int
    draws: tuple[int, ...]
    cursor: int
    held: tuple[int, ...] = ()
    spare: int = 0


class RoundRedrawn(Message, frozen=True):
    """Journaled: no engine accepts the prompts of these groups of `batch`; these new draws replace them, and
    the previous ones are over."""

    batch: str
    groups: tuple[int, ...]
    draws: tuple[int, ...]
    cursor: int


class RoundSettled(Message, frozen=True):
    """Journaled: the step of `batch` is trained on some of its draws. over: those that were dropped.
    deferred: those that wait in the queue now, in the order of their numbers."""

    batch: str
    over: tuple[int, ...]
    deferred: tuple[int, ...]


DrawEvent = Drawn | Redrawn | Returned | RoundDrawn | RoundRedrawn | RoundSettled


class OtherDraws(ValueError):
    """The journal has draws of a job with rounds and the settings have none, or the reverse."""


class DrawOrder(Protocol):
    """The order of the training problems, and which batch has which of them."""

    def of(self, batch: str) -> list[int]:
        """The problems of its groups that are drawn so far."""

    def seed_place(self, batch: str, group: int) -> tuple[str, int]:
        """The batch and the group whose seeds this group has."""

    def shape(self, batch: str, step: int) -> Shape | None:
        """What this step launches; None: what every step of a job without rounds does."""

    def draw(self, batch: str, until: int, step: int) -> DrawEvent | None:
        """The event that gives the batch problems for its groups up to `until`; None when it has them, or
        takes no more."""

    def redraw(self, batch: str, unfit: Mapping[int, int]) -> DrawEvent | None:
        """The event that gives these groups, by number with the problem that fits no engine, other problems;
        None when all of them have others already."""

    def settle(self, batch: str, kept: Collection[int], dropped: Collection[int]) -> DrawEvent | None:
        """The event that ends the batch, whose step is trained; None when there is nothing to note. kept,
        dropped: groups that counted, and uniform ones."""

    def apply(self, event: DrawEvent) -> None:
        """Change by one event. Raises OtherDraws."""

    def finished(self, step: int) -> None:
        """The step is on record."""

    def snapshot(self) -> DrawSnapshot:
        """The order now, in place of all events so far."""

    def restore(self, snapshot: DrawSnapshot) -> None:
        """Have the order of the snapshot, in an order of which nothing was drawn. Raises OtherDraws."""
