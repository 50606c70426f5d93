"""A pytest plug-in that makes a mutant before any module of the product is imported.

`-p tests.mutant_plugin`, with the name of the mutant in the environment (`gleaner.chaos.mutation_score`).
"""

import os

from gleaner.chaos.mutants import edits_of
from gleaner.chaos.mutate import plant

if name := os.environ.get("GLEANER_MUTANT", ""):
    plant(edits_of(name))
