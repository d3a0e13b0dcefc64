"""Find code that nobody calls: vulture, without its opinion on data.

    python scripts/dead_code.py src tests

A field of a dataclass, an event or a wire type is there because the data has it,
whether or not somebody reads it by name; so variables and attributes are left out,
which vulture's own command line cannot do.
"""

from __future__ import annotations

import sys

from vulture import Vulture
from vulture.config import make_config

DATA = {"attribute", "variable"}


def main(paths: list[str]) -> int:
    """Print each finding; the number of them is the verdict."""
    config = make_config(paths)
    vulture = Vulture(ignore_names=config["ignore_names"], ignore_decorators=config["ignore_decorators"])
    vulture.scavenge(config["paths"])
    findings = [item for item in vulture.get_unused_code(config["min_confidence"]) if item.typ not in DATA]
    for item in findings:
        print(item.get_report())
    return len(findings)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
