"""The container of a response, which the code interpreter and the shell share.

attachments  files of the history that are copied into it
citations    annotations of its files in the model's text
selection    finds it for the tools that a request declares
container    its state during one response: record, files, lease
"""

from __future__ import annotations

from antwort.tools.builtins.container.container import ResponseContainer
from antwort.tools.builtins.container.selection import ResponseContainers

__all__ = ["ResponseContainer", "ResponseContainers"]
