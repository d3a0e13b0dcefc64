"""Entry point of `python -m antwort`: the same as the command `antwort`."""

from __future__ import annotations

from .cli import main

if __name__ == "__main__":
    main()
