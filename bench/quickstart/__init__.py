"""The shipped job beside TRL: same machine, model, problems and batch."""
