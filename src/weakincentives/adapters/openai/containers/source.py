"""The seam for sections that bring a container of their own, as a workspace does. Declares only.

A section of the prompt that has the three methods of `ContainerSource` takes part in every request:

1. Before it, `open_container` says which container the model's code is to run in. The id is put into the declaration of
   code interpreter, and of a shell that would otherwise get a container of its own.
2. Where the provider says that this container is gone, `container_expired` is told, everything that ran there is
   retold in words, and step 1 is taken again. Whoever cannot make another container raises an error there.
3. After the answer, `container_used` may look at what the model's code has left behind.

One that is a `ContainerGuide` as well is asked what there is to say of every container that is new to a conversation.

Only sections that take part in the prompt are asked, and only where some tool would use the container. A prompt has at
most one of them, and a declaration that names a container itself beside one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from weakincentives.deadlines import Deadline
from weakincentives.runtime import Session

if TYPE_CHECKING:
    from openai import OpenAI


@dataclass(frozen=True)
class ContainerVisit:
    """What a source may use: a client that does not retry by itself, the session for events, and the time left."""

    client: OpenAI
    session: Session
    deadline: Deadline | None = None
    ran: bool = True
    """After an answer: whether anything ran in the container."""


@runtime_checkable
class ContainerSource(Protocol):
    """A section that says which container to use."""

    def open_container(self, visit: ContainerVisit) -> str:
        """The id of a container that is ready. Called before every request, so it should remember."""
        ...

    def container_expired(self, container_id: str, visit: ContainerVisit) -> None:
        """The provider no longer has this container. The next `open_container` must give another, or raise."""
        ...

    def container_used(self, container_id: str, visit: ContainerVisit) -> None:
        """A response came back that may have changed what is in the container."""
        ...


@runtime_checkable
class ContainerGuide(Protocol):
    """A source that may have something to say of its container which the prompt could not know."""

    def container_note(self, *, replaced: bool) -> str | None:
        """What the model is told before it works in this container: the first one, or one that replaced another."""
        ...
