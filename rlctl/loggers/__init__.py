"""Adapters that send a run's history to TensorBoard or Weights & Biases.

They read the run's history, in the process that watches the run: a service that is slow, full or gone loses
figures there and never affects the run.
"""
