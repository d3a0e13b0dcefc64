"""Program that runs in a sandbox: reads the HTML or PDF file `page`, and writes its title and text to `page.json`.

It is sent to the sandbox as text, behind a line that sets `CHARSET` and `IS_PDF`, and imports nothing of this project.
Resiliparse finds the main content of HTML; a page where it finds little is read completely. A BOM counts more than the
charset of the HTTP header, and that more than the one in the page, as in browsers.
"""

from __future__ import annotations

import codecs
import json
import os
from pathlib import Path

CHARSET = globals().get("CHARSET", "")
IS_PDF = globals().get("IS_PDF", False)
MAX_TEXT = 1_000_000
LITTLE = 400
BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
SUPERSETS = {"shift_jis": "cp932", "euc_kr": "cp949"}  # what pages mean by these names


def encoding_of(data: bytes, charset: str) -> str:
    """The charset of the BOM, of the HTTP header if it is known, or of the page."""
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5  # noqa: PLC0415 - only what the page needs  # pyright: ignore[reportMissingModuleSource] - a compiled module

    bom = next((name for start, name in BOMS if data.startswith(start)), None)
    named = map_encoding_to_html5(charset, fallback_utf8=False) if charset else None
    name = bom or named or detect_encoding(data, from_html_meta=True) or "utf-8"
    return SUPERSETS.get(name, name)


def read_html(data: bytes, charset: str) -> dict[str, str]:
    """Title and text of a page."""
    from resiliparse.extract.html2text import extract_plain_text  # noqa: PLC0415 - only what the page needs  # pyright: ignore[reportMissingModuleSource] - a compiled module
    from resiliparse.parse.encoding import bytes_to_str  # noqa: PLC0415 - only what the page needs  # pyright: ignore[reportMissingModuleSource] - a compiled module
    from resiliparse.parse.html import HTMLTree  # noqa: PLC0415 - only what the page needs

    tree = HTMLTree.parse(bytes_to_str(data, encoding_of(data, charset)))
    text = extract_plain_text(tree, main_content=True)
    if len(text) < LITTLE:
        complete = extract_plain_text(tree)
        text = complete if len(complete) > len(text) else text
    return {"title": (tree.title or "")[:LITTLE], "text": text[:MAX_TEXT]}


def read_pdf(path: Path) -> dict[str, str]:
    """Title and text of a PDF document, up to the limit. A page without a text layer has no text."""
    from pypdf import PdfReader  # noqa: PLC0415 - only what the page needs

    reader = PdfReader(path)
    texts: list[str] = []
    length = 0
    for page in reader.pages:
        texts.append(page.extract_text().strip())
        length += len(texts[-1])
        if length > MAX_TEXT:
            break
    title = (reader.metadata.title if reader.metadata else None) or ""
    return {"title": title[:LITTLE], "text": "\n\n".join(filter(None, texts))[:MAX_TEXT]}


if __name__ == "__main__":
    page = Path("page")
    result = read_pdf(page) if IS_PDF else read_html(page.read_bytes(), CHARSET)
    Path(os.environ.get("OUTPUT_DIR", "."), "page.json").write_text(json.dumps(result), encoding="utf-8")
