"""The shipped job beside a plain trainer: TRL on the same machine, with the same model, problems, batch."""
