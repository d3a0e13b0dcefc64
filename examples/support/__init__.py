"""Modules of the examples: a model or a script, console output, progress bars."""
