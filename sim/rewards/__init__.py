"""Model of a reward service: traces of its items, and what they cost under each scaling policy."""
