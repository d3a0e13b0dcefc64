"""Fakes and conformance suites for tests: a scripted model, and the tests that every `Filesystem` must pass.

scripted     `ScriptedAdapter`: a provider adapter whose model replies from a list
filesystem   `FilesystemConformance`: subclass it to test an implementation of `Filesystem`
"""

from __future__ import annotations

from weakincentives.testing.filesystem import FilesystemConformance
from weakincentives.testing.scripted import ScriptedAdapter, ScriptedReply, call, calls, native, say

__all__ = ["FilesystemConformance", "ScriptedAdapter", "ScriptedReply", "call", "calls", "native", "say"]
