"""`FileTypes`: the file types that may be uploaded to a container, by suffix; checked before anything is sent. Pure.

OpenAI documents the types that code interpreter supports; other servers, such as antwort, accept every file. So the
default depends on the server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from weakincentives.adapters.openai.wire import is_openai

_logger = logging.getLogger(__name__)

OPENAI_FILE_TYPES = frozenset(
    {
        *(".c", ".cpp", ".cs", ".css", ".csv", ".doc", ".docx", ".gif", ".html", ".java", ".jpeg", ".jpg", ".js"),
        *(".json", ".md", ".pdf", ".php", ".pkl", ".png", ".pptx", ".py", ".rb", ".sh", ".tar", ".tex", ".ts", ".txt"),
        *(".xlsx", ".xml", ".zip"),
    }
)
"""The types that OpenAI documents for code interpreter."""

_UNDOCUMENTED = frozenset({".ipynb"})  # in use with code interpreter, but not documented: never refused by default
_MAX_NAMES = 10


@dataclass(frozen=True)
class FileTypes:
    """The file types that may be uploaded, and what happens to others.

    `allowed` are suffixes such as ".csv", in any case; "" allows names without one. With None the types are those of
    the server: `OPENAI_FILE_TYPES` at OpenAI, all types elsewhere.
    `unsupported="refuse"` is an error before anything is sent, "warn" logs the names and uploads the files.
    """

    allowed: Collection[str] | None = None
    unsupported: Literal["refuse", "warn"] = "refuse"

    def __post_init__(self) -> None:
        if self.unsupported not in ("refuse", "warn"):
            raise ValueError(f"unsupported must be 'refuse' or 'warn', not {self.unsupported!r}")
        if self.allowed is None:
            return
        if isinstance(self.allowed, str) or not all(_is_suffix(one) for one in self.allowed):
            raise ValueError(f"allowed must be suffixes such as ['.csv', '.py'], not {self.allowed!r}")
        object.__setattr__(self, "allowed", frozenset(one.lower() for one in self.allowed))

    def refusal(self, paths: Callable[[], Iterable[str]], *, base_url: object, setting: str) -> str | None:
        """Why some of the files cannot be uploaded to this server; None if they can.

        `setting`, such as `file_types={}`, is named as the cure. `paths` is called only if there is something to check.
        """
        allowed = self.allowed
        if allowed is None:
            allowed = OPENAI_FILE_TYPES if is_openai(str(base_url)) else None
        if allowed is None:
            return None
        others = [path for path in paths() if _suffix(path) not in allowed]
        doubtful = _UNDOCUMENTED if self.allowed is None else frozenset[str]()
        is_refused = self.unsupported == "refuse"
        refused = [path for path in others if is_refused and _suffix(path) not in doubtful]
        if warned := [path for path in others if not is_refused or _suffix(path) in doubtful]:
            _logger.warning("uploading files of types that may be unsupported: %s", _described(warned))
        if not refused:
            return None
        supported = ", ".join(map(_type_name, sorted(allowed)))
        return (
            f"unsupported file types: {_described(refused)}. Supported are {supported}. Exclude these files, or give "
            f"{setting.format('FileTypes(allowed=…)')}, or {setting.format('None')} to upload every type"
        )


REFUSE_UNSUPPORTED = FileTypes()
WARN_OF_UNSUPPORTED = FileTypes(unsupported="warn")


def _is_suffix(value: Any) -> bool:  # noqa: ANN401 - callers may not check types
    return isinstance(value, str) and (
        not value or (value.startswith(".") and value.count(".") == 1 and len(value) > 1)
    )


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _type_name(suffix: str) -> str:
    return suffix or "no suffix"


def _described(paths: list[str]) -> str:
    shown = ", ".join(f"{path!r} ({_type_name(_suffix(path))})" for path in paths[:_MAX_NAMES])
    return shown + (f" and {len(paths) - _MAX_NAMES} more" if len(paths) > _MAX_NAMES else "")
