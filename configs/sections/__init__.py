"""Sections of the settings: a module for each subject. `gleaner.configs.schema` joins them.

Owns the names, types, ranges and defaults; each default is documented. A range is part of the type, so that a
refusal can name the expected values; rules between two settings of a section are in its `__post_init__`.
Units are in the names; a name without a unit is a count, a ratio or a text.
"""
