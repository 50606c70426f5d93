"""Names of the `rlctl` commands, each with its line in `rlctl --help`.

The module `gleaner.rlctl.commands.NAME` declares and runs a command. It is imported only when its command is
called, so that no command pays for another one's imports. Imports nothing itself.
"""

LOOKING = {
    "ps": "show every actor",
    "tree": "show the supervision tree",
    "top": "show live figures of a cluster",
    "tap": "show messages as they pass",
    "waits": "show what actors wait for, oldest first",
    "deadletters": "show undeliverable messages",
    "describe": "show one actor in detail",
    "logs": "show a run's logs",
}
COMMANDS = {
    "run": "train, from settings to report",
    "resume": "continue a run",
    "simulate": "estimate the cost of a job on other machines",
    "plan": "compare numbers of reward workers before they are rented",
    **LOOKING,
    "kill": "send a signal to a process",
    "preempt": "give a host a preemption notice",
    "generate": "continue a prompt with the weights of a running job",
    "gateway": "fault-tolerant proxy for SGLang or vLLM servers",
    "publish": "have a job serve the weights in a folder",
    "report": "write and show a run's report",
    "rounds": "show the rounds of a run, and their bias",
    "profile": "show the critical path of a run's steps",
    "log": "send a run's figures to TensorBoard or W&B",
    "audit": "check a run's invariants",
    "journal": "inspect, verify or export the journals of actors",
    "model": "make a model, or describe a checkpoint",
    "weights": "exchange weights on disk; show served versions; free the memory of dead runs",
    "engine": "serve a model with SGLang's protocol",
    "keygen": "make keys for the nodes of a cluster",
    "trust": "admit a key to a node, or list the trusted keys",
    "revoke": "revoke a key and close its connections",
    "doctor": "check what this host lacks",
    "check": "check settings and data before a run",
    "reward": "score responses, also over HTTP; show the reward tier of a job",
}
