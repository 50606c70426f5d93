"""Names of the `rlctl` commands, each with its line in `rlctl --help`.

The module `rlctl.commands.NAME` declares and runs a command. It is imported only when its command is called,
so that no command pays for another one's imports. Imports nothing itself.
"""

LOOKING = {
    "ps": "show every actor",
    "tree": "show who supervises whom",
    "top": "show a cluster as it lives",
    "tap": "show messages as they pass",
    "waits": "show what actors wait for, oldest first",
    "deadletters": "show messages that nobody got",
    "describe": "show all that is known of one actor",
    "logs": "show a run's logs",
}
COMMANDS = {
    "run": "train, from settings to report",
    "resume": "go on with a run",
    "simulate": "what a job would cost on other machines",
    **LOOKING,
    "kill": "send a signal to a process",
    "preempt": "give a host its notice",
    "generate": "continue a prompt with the weights of a running job",
    "gateway": "one URL in front of SGLang or vLLM servers, whose deaths its clients do not see",
    "publish": "have a job serve the weights in a folder",
    "report": "write and show a run's report",
    "profile": "show what the ends of a run's steps waited for",
    "log": "a run's figures into TensorBoard or W&B",
    "audit": "check a run's invariants",
    "journal": "look at what actors journaled",
    "model": "make or look at a model",
    "weights": "weights on disk, for slime and Stitch; what this host serves; what dead runs left",
    "engine": "serve a model in SGLang's protocol",
    "keygen": "make keys for the nodes of a cluster",
    "trust": "admit a key to a node, or list who is",
    "revoke": "trust a key no longer, cut what it has open",
    "doctor": "tell what this host lacks",
    "check": "check settings and data before a run",
    "reward": "score one response as a job would",
}
