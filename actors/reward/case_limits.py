"""`CaseLimits` and `CaseTimes`: what the tests of one program may take, and what they took. Pure.

Also for code inside a sandbox, which has no settings; `timeouts` makes the limits.
"""

import msgspec


class CaseLimits(msgspec.Struct, frozen=True):
    """Limits of the tests of one program, processor seconds. tests_s: of each test by the anchors, empty
    where there are none. max_s: of each test without one."""

    max_s: float
    tests_s: tuple[float, ...] = ()

    def of(self, count: int) -> list[float]:
        """The limit of each of `count` tests. Anchors of another number of tests are of other tests."""
        return list(self.tests_s) if len(self.tests_s) == count else [self.max_s] * count


class CaseTimes(msgspec.Struct, frozen=True):
    """What the tests of one program took. right_s: of each test, processor seconds, if all passed; else
    empty. cut: a test took longer than its limit, which was below `CaseLimits.max_s`."""

    right_s: tuple[float, ...] = ()
    cut: bool = False
