"""Context compaction: replaces the history of a long conversation by a shorter window with an encrypted summary.

state         `CompactionState`, the session slice with the window; `TranscriptItem`, the plain items that it replaced
window        functions on lists of items: pairs of calls and outputs, pruning, rebuilding. Pure
support       `ServerSupport`: which forms of compaction a server has
manager       `CompactionManager`: calls the endpoint, keeps the state, rebuilds a window that cannot be decrypted
conversation  `ConversationCompactor`: when the conversation of an evaluation is compacted
"""

from __future__ import annotations

__all__: list[str] = []
