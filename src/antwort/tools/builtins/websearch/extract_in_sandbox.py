"""Program that runs in a sandbox: reads the HTML file `page.html`, and writes its title and text to `page.json`.

It is sent to the sandbox as text, behind a line that sets `CHARSET`, and imports nothing of this project. Resiliparse
finds the main content; a page where it finds little is read completely.
"""

from __future__ import annotations

import codecs
import json
import os
from pathlib import Path

from resiliparse.extract.html2text import extract_plain_text  # pyright: ignore[reportMissingModuleSource] - a compiled module
from resiliparse.parse.encoding import bytes_to_str, detect_encoding  # pyright: ignore[reportMissingModuleSource] - a compiled module
from resiliparse.parse.html import HTMLTree

CHARSET = globals().get("CHARSET", "")
MAX_TEXT = 1_000_000
LITTLE = 400


def encoding_of(data: bytes, charset: str) -> str:
    """The charset of the HTTP header if Python has it, else that of the page."""
    try:
        return codecs.lookup(charset).name
    except LookupError:
        return detect_encoding(data, from_html_meta=True) or "utf-8"


def read(data: bytes, charset: str) -> dict[str, str]:
    """Title and text of a page."""
    tree = HTMLTree.parse(bytes_to_str(data, encoding_of(data, charset)))
    text = extract_plain_text(tree, main_content=True)
    if len(text) < LITTLE:
        complete = extract_plain_text(tree)
        text = complete if len(complete) > len(text) else text
    return {"title": (tree.title or "")[:LITTLE], "text": text[:MAX_TEXT]}


if __name__ == "__main__":
    result = read(Path("page.html").read_bytes(), CHARSET)
    Path(os.environ.get("OUTPUT_DIR", "."), "page.json").write_text(json.dumps(result), encoding="utf-8")
