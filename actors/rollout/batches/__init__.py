"""Batches: submission, scores, selection of groups, delivery to the trainer."""
