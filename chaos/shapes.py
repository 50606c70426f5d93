"""Shapes: variants of a kind of fault.

A kind that fired in one shape is half tried. Owns their names. Pure. `apply_sim` counts a shape where it
counts the kind; a campaign that wants a kind wants all of its shapes.
"""

from collections.abc import Mapping

from gleaner.chaos.faults import (
    AnyFault,
    BadLink,
    BadScorer,
    ClockJump,
    FalseNotice,
    Hang,
    KillHost,
    KillInCommit,
    KillOnMessage,
    Notice,
    Partition,
    SickVerifier,
    kind_of,
)
from gleaner.chaos.machine_faults import (
    BadEngine,
    BitRot,
    CloudTrouble,
    OperatorCommand,
    PowerLoss,
    SlowDisk,
)

SHAPES: Mapping[str, tuple[str, ...]] = {
    "kill_host": ("preemptible", "reserved, back again", "head, back at its address"),
    "kill_on_message": ("received", "sent", "replied"),
    "kill_in_commit": ("lost", "torn"),
    "hang": (
        "head's node agent",
        "manager",
        "reward",
        "reserved node agent",
        "transfer",
        "trainer",
        "engine",
        "preemptible node agent",
    ),
    "partition": ("one way", "both ways"),
    "bad_link": ("loss", "duplicates", "delay", "jitter", "rate"),
    "notice": ("0 s", "30 s", "120 s"),
    "false_notice": ("hint", "notice"),
    "clock_jump": ("back", "forward"),
    "bad_scorer": ("hang", "crash", "lie"),
    "sick_verifier": ("raise", "hang", "crash"),
    "slow_disk": ("latency", "rate", "stall"),
    "power_loss": ("head", "reserved"),
    "bit_rot": ("checkpoint", "copy", "image"),
    "cloud_trouble": ("refuses", "late", "extra"),
    "operator_command": ("preempt", "drain", "stop", "kill", "resubmit", "submit_other", "publish"),
    "bad_engine": ("vocabulary", "nan", "positive", "ticket", "ragged", "version"),
}
"""By kind, in display order. Jitter reorders: messages of different connections overtake each other.
`replied`: between the commit and the reply."""
REWARD_SHAPES: Mapping[str, tuple[str, ...]] = {"kill_in_commit": ("reward proxy",)}
"""The further ones where there are reward hosts."""


def shapes_of(fault: AnyFault) -> tuple[str, ...]:
    """Shapes of one fault; none where its kind has no shapes."""
    match fault:
        case KillHost():
            return (_host(fault.host),)
        case PowerLoss():
            return (_role(fault.host),)
        case Hang():
            return (_hung(fault),)
        case KillOnMessage():
            return (fault.moment,)
        case KillInCommit():
            of = ("reward proxy",) if fault.process == "reward" else ()
            return ("torn" if fault.torn else "lost", *of)
        case Partition():
            return ("both ways" if fault.both else "one way",)
        case BadLink():
            had = {
                "loss": fault.loss,
                "duplicates": fault.duplicate,
                "delay": fault.delay_s,
                "jitter": fault.jitter_s,
                "rate": fault.bytes_per_s,
            }
            return tuple(shape for shape, much in had.items() if much)
        case Notice():
            return (f"{fault.notice_s:g} s",)
        case FalseNotice():
            return ("hint" if fault.hint else "notice",)
        case ClockJump():
            return ("back" if fault.by_s < 0 else "forward",)
        case SlowDisk():
            return _slowed(fault)
        case BitRot() | OperatorCommand():
            return (fault.what,)
        case BadScorer() | SickVerifier() | CloudTrouble() | BadEngine():
            return (fault.how,)
    return ()


def named(fault: AnyFault) -> tuple[str, ...]:
    """Its shapes in counted form: `kind: shape`."""
    kind = kind_of(fault)
    return tuple(f"{kind}: {shape}" for shape in shapes_of(fault))


def wanted(kinds: tuple[str, ...], *, head_returns: bool, rewards: bool = False) -> tuple[str, ...]:
    """All shapes of these kinds, as they are counted. A head that does not come back is never killed.
    rewards: there are reward hosts."""
    of_rewards = REWARD_SHAPES if rewards else {}
    return tuple(
        f"{kind}: {shape}"
        for kind in kinds
        for shape in (*SHAPES.get(kind, ()), *of_rewards.get(kind, ()))
        if head_returns or not shape.startswith("head")
    )


def _slowed(fault: SlowDisk) -> tuple[str, ...]:
    if fault.stall:
        return ("stall",)
    return ("latency", "rate") if fault.bytes_per_s else ("latency",)


def _hung(fault: Hang) -> str:
    if fault.process == "agent":
        return f"{_role(fault.host)} node agent".replace("head ", "head's ")
    return {"rollout": "manager"}.get(fault.process, fault.process)


def _role(host: str) -> str:
    roles = ("head", "reserved", "reward", "scores")
    found = next((role for role in roles if host.lstrip("@").startswith(role)), "")
    return found or "preemptible"


def _host(host: str) -> str:
    shapes = {
        "head": "head, back at its address",
        "reserved": "reserved, back again",
        "reward": "reward host, back again",
        "scores": "reward service, back again",
    }
    return shapes.get(_role(host), "preemptible")
