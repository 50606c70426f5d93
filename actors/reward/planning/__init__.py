"""Planning of reward workers: how many of each stage, from what earlier batches needed.

Policies, without any I/O: Algorithms 1 and 2 of DistRS (NSDI 26, sections 5.1 and 5.2) and its queue model.
"""
