"""Liveness: heartbeats, failure detectors, watches and links of actors."""
