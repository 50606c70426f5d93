"""Messages with important effects, at which processes are killed; by process.

Owns the lists from which `fault_sampler` draws. Pure.
"""

from collections.abc import Mapping

from gleaner.chaos.faults import Moment, Process

Seat = tuple[str, Process]
"""A role of hosts and a process there."""
GOT: Mapping[Seat, tuple[str, ...]] = {
    ("@head", "rollout"): (
        "RegisterInstance", "SubmitBatch", "TakeGroups", "ReleaseBatch", "Serving", "Withdraw", "Place",
        "Placed", "Verdict",
    ),
    ("@head", "reward"): ("Score", "GetProblems"),
    ("@head", "agent"): ("ClaimNames", "NodeHello", "NodeSeen", "PlanNext", "StepDone", "StateSaved"),
    ("@reserved", "trainer"): (
        "TrainStep", "Groups", "OpenSeeding", "CloseSeeding", "Published", "Dispatch", "StateIs",
    ),
    ("@reserved", "transfer"): ("Publish", "Offer"),
    ("@reserved", "agent"): ("SaveState", "LatestState", "RecordOf"),
    ("@preemptible", "transfer"): ("Fetch", "Offered"),
    ("@preemptible", "engine"): ("Dispatch", "ServeWeights", "Registered", "Fetched"),
    ("@preemptible", "agent"): ("NodeWork",),
}  # fmt: skip
"""Messages with an important effect in the process that receives them."""
SENT: Mapping[Seat, tuple[str, ...]] = {
    ("@head", "rollout"): ("Dispatch", "Dispatch", "ServeWeights", "Score"),
    ("@head", "agent"): ("SubmitBatch", "TrainStep", "ReleaseBatch", "GetProblems"),
    ("@reserved", "trainer"): ("TakeGroups", "Publish", "SaveState", "RegisterInstance", "Serving"),
    ("@reserved", "agent"): ("StateSaved", "NodeHello"),
    ("@preemptible", "transfer"): ("Offer",),
    ("@preemptible", "engine"): ("RegisterInstance", "Fetch", "Serving"),
    ("@preemptible", "agent"): ("NodeHello",),
}
"""Messages with an important effect in the process that sends them: its commit has happened, and the message
is lost."""

CALLED: tuple[tuple[Process, str, Moment], ...] = (
    ("rollout", "Generate", "received"), ("rollout", "Generate", "replied"),
    ("rollout", "Generate", "replied"), ("rollout", "PublishVersion", "received"),
    ("rollout", "PublishVersion", "replied"), ("agent", "PublishVersion", "sent"),
)  # fmt: skip
"""Further messages on the head where single requests are sent. Other campaigns draw the same as without this
list."""
CALLED_BY_GATEWAY: tuple[tuple[Process, str, Moment], ...] = (
    ("rollout", "Generate", "received"), ("rollout", "Generate", "replied"), ("rollout", "Cancel", "replied"),
    ("rollout", "Progress", "sent"), ("gateway", "Progress", "received"), ("gateway", "Generate", "sent"),
)  # fmt: skip
"""The same where a gateway sends them."""
REWARD_GOT: Mapping[Seat, tuple[str, ...]] = {
    ("@head", "reward"): (
        "Score", "Score", "OfferWorkers", "ItemsScored", "ItemsScored", "CancelScores", "BatchEnded",
        "Withdraw",
    ),
    ("@head", "reward-planner"): ("PlanWorkers",),
    ("@reward", "reward-host"): (
        "ScoreItems", "ScoreItems", "WorkersTaken", "ResizeWorkers", "CancelItems",
    ),
    ("@reward", "agent"): ("NodeWork",),
}  # fmt: skip
"""The same as `GOT`, of the processes of the reward tier where there are reward hosts."""
REWARD_SENT: Mapping[Seat, tuple[str, ...]] = {
    ("@head", "reward"): ("ScoreItems", "ScoreItems", "CancelItems"),
    ("@reward", "reward-host"): ("OfferWorkers", "ItemsScored", "ItemsScored"),
    ("@reward", "agent"): ("NodeHello", "Withdraw"),
}
"""The same as `SENT`."""
SERVICE_GOT: tuple[tuple[str, Moment], ...] = (
    ("ScoreText", "received"), ("ScoreText", "replied"), ("ScoreText", "replied"),
    ("CancelScores", "received"),
)  # fmt: skip
"""Messages of the process of a reward service that scores for the job: it dies with an item that it took,
with a verdict that is not sent yet, or with one whose request was cancelled."""
MOMENT_SHARES: tuple[Moment, ...] = ("received", "replied", "replied", "sent")
