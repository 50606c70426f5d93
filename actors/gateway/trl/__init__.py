"""What TRL's client calls."""
