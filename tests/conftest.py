"""What holds for every test: no law depends on how fast the machine is."""

from hypothesis import HealthCheck, settings

settings.register_profile("gleaner", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gleaner")
