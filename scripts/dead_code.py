"""Finds dead code: runs vulture without its findings on variables and attributes.

    python scripts/dead_code.py src tests

Fields of dataclasses, events and wire types are part of the data, also if no code reads them by name. So
variables and attributes are ignored, which vulture's command line does not support.
"""

from __future__ import annotations

import sys

from vulture import Vulture
from vulture.config import make_config

IGNORED_KINDS = {"attribute", "variable"}


def main(paths: list[str]) -> int:
    """Print the findings, and return their number."""
    config = make_config(paths)
    vulture = Vulture(ignore_names=config["ignore_names"], ignore_decorators=config["ignore_decorators"])
    vulture.scavenge(config["paths"])
    findings = [item for item in vulture.get_unused_code(config["min_confidence"]) if item.typ not in IGNORED_KINDS]
    for item in findings:
        print(item.get_report())
    return len(findings)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
