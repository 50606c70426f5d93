"""One version of the weights in shared memory: store, draft, manifest."""
