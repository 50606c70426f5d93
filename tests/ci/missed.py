"""Key of pytest's stash: the tests that no part of `make test` imports, by their ids."""

import pytest

MISSED = pytest.StashKey[list[str]]()
