"""Model of a reward service: its workload, and what that costs under each scaling policy."""
