"""Commands of `chaos`, registered as entry points of the group `rlctl.commands`."""
