"""Modules that the fork servers of these tests import: this one."""

import os

MODULES = ("preloaded_under_test",)
LOADED_BY = os.getpid()
