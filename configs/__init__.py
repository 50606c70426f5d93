"""Typed settings of a run, their presets, and availability traces."""
