"""What a process shows of itself: actors, taps, failures, figures."""
