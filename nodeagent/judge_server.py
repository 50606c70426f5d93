"""The server of a judge beside the job's engine, made of settings and a key of the environment."""

import os
from pathlib import Path

from gleaner.actors.engine.builtin_server.entry import BuiltinEntry
from gleaner.actors.engine.builtin_server.process import Settings
from gleaner.configs.load import ConfigError
from gleaner.configs.schema import Config


def judge_entry(config: Config) -> BuiltinEntry:
    """The server, not started. Raises ConfigError for a key that is not there."""
    judge = config.reward.judge
    own = judge.colocated
    key = os.environ.get(judge.key_env, "").strip() if judge.key_env else ""
    if judge.key_env and not key:
        raise ConfigError(
            [f"reward.judge.key_env: the reserved host was started without a variable {judge.key_env}"]
        )
    host, port = own.address
    return BuiltinEntry(
        Settings(
            model=Path(own.model_path),
            host=host,
            port=port,
            slots=own.slots,
            max_tokens=own.context_tokens,
            reserve_mb=own.reserve_mb,
            device=own.device,
            name=judge.served_model,
            api_key=key or None,
        )
    )
