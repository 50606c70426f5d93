"""Gleaner."""
