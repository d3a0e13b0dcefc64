"""The server's face: one file for each resource. `app` wires everybody; nothing else here knows all of it.

gate             who comes in, and what every answer carries
bodies           JSON in and out, within limits
multipart        uploads, read as they come
streams          events out, at the reader's pace
errors, paging   what all resources share
"""

from __future__ import annotations

__all__: list[str] = []
