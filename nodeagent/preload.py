"""Modules that the processes of a local fleet use: its fork server imports them once for all of them."""

MODULES = (
    "gleaner.nodeagent.node",
    "gleaner.nodeagent.process",
    "gleaner.nodeagent.host_services",
    "gleaner.actors.cluster.state_manager",
    "gleaner.actors.engine.builtin.host",
    "gleaner.actors.engine.worker.worker",
    "gleaner.actors.reward.proxy",
    "gleaner.actors.rollout.dispatch.load_balancer",
    "gleaner.actors.rollout.manager",
    "gleaner.actors.training.trainer",
    "gleaner.actors.training.trainer_files",
    "gleaner.actors.weights.agent",
    "gleaner.actors.training.controller",
    "gleaner.nodeagent.commands",
)
