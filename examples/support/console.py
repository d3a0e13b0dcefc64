"""Console output of a running agent: reasoning, code, output and file transfers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from support.progress import show_transfers
from weakincentives.runtime import ModelProgress, Session, ToolInvoked

_HEADS = {
    "reasoning": ("the model thinks", "dim"),
    "text": ("the model answers", "bold"),
    "code": ("the model writes Python", "cyan"),
    "arguments": ("the model calls a tool", "cyan"),
    "output": ("the container ran it, and it printed", "green"),
}


@contextmanager
def show_progress(session: Session, console: Console) -> Iterator[None]:
    """Print the progress of a session."""
    show_transfers(session)
    waiting = console.status("the model reads …")
    shown: list[tuple[str, str]] = []  # kind and item of what was printed last

    def on_progress(event: ModelProgress) -> None:
        if not event.text:
            return
        head, style = _HEADS[event.kind]
        if shown[-1:] != [(event.kind, event.item_id)]:
            waiting.stop()
            console.print(Text(("\n" if shown else "") + f"── {head}", style="bold magenta"))
            shown.append((event.kind, event.item_id))
        console.print(Text(event.text.replace("\x1b", ""), style=style), end="", soft_wrap=True)
        if event.kind == "output":
            waiting.start()

    def on_tool(event: ToolInvoked) -> None:
        if not event.success:
            console.print(Text(f"\n── {event.name} failed", style="bold red"))

    session.dispatcher.subscribe(ModelProgress, on_progress)
    session.dispatcher.subscribe(ToolInvoked, on_tool)
    with waiting:
        try:
            yield
        finally:
            session.dispatcher.unsubscribe(ModelProgress, on_progress)
            session.dispatcher.unsubscribe(ToolInvoked, on_tool)
            console.print()
