"""Commands of this floor; `rlctl` finds them by the entry points of the group `rlctl.commands`."""
