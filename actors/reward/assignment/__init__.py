"""Assignment of reward items to workers: which item runs next, and on which host. Policies, without I/O."""
