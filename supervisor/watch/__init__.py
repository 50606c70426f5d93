"""Who is alive: heartbeats, failure detectors, watches and links of actors."""
