"""`ContainerSource`: protocol for prompt sections that supply the container of code interpreter and of hosted shells.

A section of the prompt with the four methods of `ContainerSource` takes part in every request:

1. Before the request, `open_container` returns the id of the container in which the model's code is to run. The id
   replaces the `container` of code interpreter, and of a shell whose container the server would choose.
2. `container_note` returns a message for the model about a container that is new to the conversation, or None.
3. If the provider reports that the container expired, `container_expired` is called, all calls that ran in it are
   rewritten as text in the history, and step 1 is repeated. A section that cannot create another container raises.
4. After the response, `container_used` may list what the model's code left behind.

Only enabled sections are called. A prompt has at most one such section, and some tool of it must use the container; a
tool declaration beside it that names a container itself is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from weakincentives.deadlines import Deadline
from weakincentives.runtime import Session

if TYPE_CHECKING:
    from openai import OpenAI


@dataclass(frozen=True)
class EvaluationScope:
    """The client (its retries are off), the session for events, and the deadline of one evaluation."""

    client: OpenAI
    session: Session
    deadline: Deadline | None = None


@runtime_checkable
class ContainerSource(Protocol):
    """A section that supplies the container for the model's code."""

    def open_container(self, scope: EvaluationScope) -> str:
        """Return the id of a running container. Called before every request: return the same id while it lives."""
        ...

    def container_note(self, *, replaced: bool) -> str | None:
        """Return a message for the model about this container; `replaced`: it replaces an earlier one."""
        ...

    def container_expired(self, container_id: str, scope: EvaluationScope) -> None:
        """The provider no longer has this container. The next `open_container` returns another id, or raises."""
        ...

    def container_used(self, container_id: str, scope: EvaluationScope, *, has_run_code: bool) -> None:
        """A response arrived; `has_run_code`: it has calls that ran in the container and may have changed files."""
        ...
