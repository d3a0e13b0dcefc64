"""Design by contract: what a function expects, promises and leaves alone, said where it is defined.

    switch      whether contracts are checked; decided when something is decorated
    conditions  `require` and `ensure`: before and after a call
    invariants  `invariant`: what always holds for the instances of a class
    purity      `pure`: the arguments are left as they were

Contracts are for tests and development. They are off unless WEAKINCENTIVES_DBC=1
is set, and off means gone: each decorator hands back the very object it was given.
"""

from __future__ import annotations

from weakincentives.dbc.conditions import ensure, require
from weakincentives.dbc.invariants import invariant
from weakincentives.dbc.purity import pure
from weakincentives.dbc.switch import checking, is_checking

__all__ = ["checking", "ensure", "invariant", "is_checking", "pure", "require"]
