"""The state of rollout, journaled: events are committed, then applied."""
