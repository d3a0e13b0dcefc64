"""Attachments: the images and files of the input, as models read them.

- `attacher`: resolves ids and inline content to data URLs, and refuses what a model cannot read
- `input_urls`: fetches http and https URLs before that, where the operator allows it
"""

from __future__ import annotations

from antwort.engine.attachments.attacher import Attacher, check_files, decode_file_data, file_type, image_type

__all__ = ["Attacher", "check_files", "decode_file_data", "file_type", "image_type"]
