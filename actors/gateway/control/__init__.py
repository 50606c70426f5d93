"""Control routes: workers, loads, aborts, pauses, weights, health."""
