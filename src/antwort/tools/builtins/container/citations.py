"""File citations (`container_file_citation`): links to `/mnt/data`, and names of created files, in the text. Pure.

Indexes count code points, from the first to behind the last character of the mention; of a
link they cover its URL, as OpenAI's do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from antwort.api.items import ContainerFileCitation
from antwort.engine.stores import ContainerFileRecord

_DATA: Final = "/mnt/data/"
_LINK: Final = re.compile(re.escape(f"sandbox:{_DATA}"))
# The boundaries of a name that is not part of a longer one. A full stop at the end of a sentence may follow. Only
# ASCII counts, because some languages put no space between a name and the next word.
_BEGINS: Final = r"(?<![A-Za-z0-9_./-])"
_ENDS: Final = r"(?![A-Za-z0-9_/-]|\.[A-Za-z0-9])"
_QUOTE: Final = "[`\"']"
_END: Final = re.compile(_ENDS)


class _Mention(Struct, frozen=True):
    start: int
    end: int
    file: ContainerFileRecord


def cite(
    text: str, files: Iterable[ContainerFileRecord], made: Sequence[ContainerFileRecord]
) -> list[ContainerFileCitation]:
    """Every link to a file; and the first mention by name of each created file that is not linked."""
    mentions = list(_links(text, files))
    linked = {mention.file.id for mention in mentions}
    names = Counter(_name(file) for file in made)
    unlinked = (file for file in made if file.id not in linked)
    named = (_first_mention(text, file, is_unique=names[_name(file)] == 1) for file in unlinked)
    mentions += [mention for mention in named if mention is not None]
    mentions.sort(key=lambda mention: mention.start)
    return [_citation(mention) for mention in mentions]


def _links(text: str, files: Iterable[ContainerFileRecord]) -> Iterator[_Mention]:
    """`sandbox:` URLs, plain or percent-encoded."""
    starts = list(_LINK.finditer(text))
    if not starts:
        return
    spelled = {spelling: file for file in files for spelling in _spellings(file.path)}
    longest_first = sorted(spelled, key=len, reverse=True)  # a link to `a.csv.gz` is none to `a.csv`
    for found in starts:
        for spelling in longest_first:
            end = found.end() + len(spelling)
            if text.startswith(spelling, found.end()) and _END.match(text, end):
                yield _Mention(found.start(), end, spelled[spelling])
                break


def _spellings(path: str) -> tuple[str, ...]:
    return path, quote(path), quote(path, safe="")


def _first_mention(text: str, file: ContainerFileRecord, *, is_unique: bool) -> _Mention | None:
    """The first mention by path, or by a unique name. A name without an extension counts only in quotes."""
    name = _name(file)
    if name not in text:
        return None
    for spelling in (_DATA + file.path, file.path, *([name] if is_unique else [])):
        word = re.escape(spelling)
        pattern = f"{_BEGINS}{word}{_ENDS}" if "." in name.strip(".") else f"(?<={_QUOTE}){word}(?={_QUOTE})"
        if found := re.search(pattern, text):
            return _Mention(found.start(), found.end(), file)
    return None


def _name(file: ContainerFileRecord) -> str:
    return file.path.rpartition("/")[2]


def _citation(mention: _Mention) -> ContainerFileCitation:
    return ContainerFileCitation(
        container_id=mention.file.container_id,
        file_id=mention.file.id,
        filename=_name(mention.file),
        start_index=mention.start,
        end_index=mention.end,
    )
