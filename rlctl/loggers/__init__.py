"""A run's figures in TensorBoard or Weights & Biases: adapters at the edge of its history.

They read what the run writes anyway, in the process of whoever watches it: a service that is slow, full or
gone costs figures there, never the run.
"""
