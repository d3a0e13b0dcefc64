"""Design by contract (DbC): preconditions, postconditions, class invariants and purity checks as decorators.

    conditions  `require` and `ensure`: predicates on the arguments before a call, and on its result after it
    invariants  `invariant`: a predicate that holds for every instance of a class between calls
    purity      `pure`: a call does not change its arguments

Contracts are assertions about this package's own code, for tests and development. They are enabled by
WEAKINCENTIVES_DBC=1, which is read when something is decorated. While they are disabled, each decorator returns the
object that it is given, so a call costs nothing. Errors that users cause are never contracts: they are always checked.
"""

from __future__ import annotations

from weakincentives.dbc.conditions import ensure, require
from weakincentives.dbc.invariants import invariant
from weakincentives.dbc.purity import pure

__all__ = ["ensure", "invariant", "pure", "require"]
