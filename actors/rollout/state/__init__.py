"""The state of rollout: pure, changed by committed events alone."""
