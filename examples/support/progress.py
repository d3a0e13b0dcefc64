"""Progress bars of file transfers to and from a container."""

from __future__ import annotations

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from weakincentives.runtime import ContainerRecreated, Session, TransferProgress


def show_transfers(session: Session) -> None:
    """Show file transfers of the session's workspaces, and replaced containers."""
    bars: dict[tuple[str, str], Progress] = {}

    def on_transfer(event: TransferProgress) -> None:
        key = (event.direction, event.container_id)
        if key not in bars:
            counts = TextColumn("{task.description:<8} {task.fields[files]} of {task.fields[all]} files")
            bars[key] = Progress(counts, BarColumn(), DownloadColumn(), TransferSpeedColumn())
            bars[key].add_task(event.direction, total=event.total_bytes, files=0, all=event.total_files)
            bars[key].start()
        (task,) = bars[key].task_ids
        bars[key].update(task, completed=event.bytes, total=event.total_bytes, files=event.files, all=event.total_files)
        if event.done:
            bars.pop(key).stop()

    def on_recreated(event: ContainerRecreated) -> None:
        print(f"The container was replaced ({event.reason}): {len(event.restored)} files restored, lost {event.lost}")

    session.dispatcher.subscribe(TransferProgress, on_transfer)
    session.dispatcher.subscribe(ContainerRecreated, on_recreated)
