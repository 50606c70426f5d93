"""Did a run keep its promises? Evidence, and the invariants held against it."""
