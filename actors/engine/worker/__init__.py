"""The rollout worker of an instance, and the ports of its engine."""
