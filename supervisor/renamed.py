"""Old names of public modules: the notice that an import of one gives.

A module under an old name holds the new one's classes under their old names, and calls `report`. Python
imports a module once, so a process reports each old name once.
"""

import warnings


def report(old: str, new: str, **classes: str) -> None:
    """Warn, at the line that imports the module `old`, that `new` replaced it. Call it from the old module.

    Args:
        old: its full name.
        new: full name of the module that replaced it.
        classes: old names of classes, with the new ones, where they differ.
    """
    others = "".join(f"; {before} is {after} there" for before, after in classes.items())
    text = f"{old} was renamed: import {new}{others}"
    warnings.warn(text, DeprecationWarning, stacklevel=3)  # behind this function, and the old module
