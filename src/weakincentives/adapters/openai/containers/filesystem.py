"""`ContainerFilesystem`: the files of a container as a `Filesystem`, with snapshot and restore.

Beside the container there are an index of its files, a mirror on the host and a read cache (`RemoteFiles`). A
container that is gone is restored from the mirror: the initial files, and all that was written or synced through here.

Snapshots make tool calls transactional. Without them a tool that fails after it wrote files would leave these files in
the container, although the call is reported as without effect.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from weakincentives.adapters.openai.config import ContainerConfig
from weakincentives.adapters.openai.containers.api import ContainerGone
from weakincentives.adapters.openai.containers.files import RemoteFiles
from weakincentives.adapters.openai.containers.manager import ContainerManager, OpenContainer
from weakincentives.adapters.openai.containers.mirror import Mirror
from weakincentives.adapters.openai.containers.source import EvaluationScope
from weakincentives.adapters.openai.containers.sync import download_all, sync
from weakincentives.errors import FilesystemError, ProviderFault
from weakincentives.filesystem import FileStat, FilesystemBase, HostFilesystem, HostSnapshot
from weakincentives.filesystem.errors import not_empty, root_not_deletable
from weakincentives.filesystem.paths import join, normalise, split
from weakincentives.runtime import ContainerRecreated, WorkspaceSynced

if TYPE_CHECKING:
    from openai import OpenAI

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Change:
    """A changed path, and the earlier content at it or below it that was not in the mirror."""

    path: str
    content_before: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


@dataclass(eq=False, slots=True, weakref_slot=True)
class ContainerSnapshot:
    """A snapshot of one `ContainerFilesystem`, for its `restore`."""

    mirror: HostSnapshot | None
    directories: frozenset[str]
    position: int


class ContainerFilesystem(FilesystemBase):
    """A `Filesystem` over a container, which is created on first use. It may be shared by threads.

    A container that expired is replaced and filled from the mirror; `ContainerRecreated` lists what was lost. Changes
    by code in the container are visible after `refresh`; a workspace refreshes after every turn.

    `tarball_path` is a tar of initial files. `local_root` is the mirror: a directory, or a function that creates it on
    first use; its files are uploaded. Without it the mirror is a temporary directory.
    """

    def __init__(
        self,
        *,
        client: OpenAI | None = None,
        container_config: ContainerConfig | None = None,
        tarball_path: Path | None = None,
        local_root: Path | Callable[[], Path] | None = None,
        manager: ContainerManager | None = None,
    ) -> None:
        self.manager = manager or ContainerManager(config=container_config, client=client)
        self._mirror = Mirror(local_root, tarball_path)
        self._files = RemoteFiles(self.manager, self._mirror)
        self._changes: list[_Change] = []
        self._snapshots: WeakSet[ContainerSnapshot] = WeakSet()

    def __repr__(self) -> str:
        return f"ContainerFilesystem({self.container_id!r})"

    @property
    def container_id(self) -> str | None:
        """The id of the container; None before one exists."""
        return self.manager.container_id

    @property
    def recreated(self) -> ContainerRecreated | None:
        """The last replacement of the container, with the files of this filesystem only."""
        return self._files.recreated

    def ensure_container(self, scope: EvaluationScope | None = None) -> str:
        """Create the container and fill it with the initial files, if necessary; return its id."""
        with self.manager.lock:
            return self._files.run(lambda container: container.id, scope)

    def cleanup(self, *, keep_container: bool = False) -> None:
        """Delete the container, if it was created here and no other filesystem uses it, and a temporary mirror."""
        with self.manager.lock:
            self._files.close(keep_container=keep_container)

    # ── changes by code in the container ─────────────────────────────────────────────────────────────────────────────

    def refresh(self) -> None:
        """List the files of the container now."""
        self._run(".", self._files.refresh)

    def refresh_after_request(self, container_id: str, scope: EvaluationScope) -> None:
        """List the files if this is still the container. A container that is gone is replaced on its next use."""
        with self.manager.lock:
            container = self.manager.current(scope)
            if container is None or container.id != container_id:
                return
            try:
                self._files.refresh(container)
            except ContainerGone as gone:
                self.manager.report_gone(gone)
                raise

    def expect_changes(self) -> None:
        """A request that may run code in the container is about to be sent: list the files before the next use."""
        self._files.expect_changes()

    def retract_change(self) -> None:
        """That request ran no code."""
        self._files.retract_change()

    def relocated(self) -> dict[str, str]:
        """Paths of files whose path in the container differs, each with that path."""
        return self._files.index.relocated()

    def known_paths(self) -> tuple[str, ...]:
        """All files of the last listing. Sends no request."""
        return tuple(sorted(entry.path for entry in self._files.index))

    def dirty_paths(self) -> tuple[str, ...]:
        """The files of the last listing whose newest content is only in the container."""
        return self._files.dirty_paths()

    # ── host copies ──────────────────────────────────────────────────────────────────────────────────────────────────

    def copy_results(self, target: HostFilesystem) -> None:
        """Copy the files of the mirror that are new, or changed since the mirror was created."""
        for path in sorted(self._mirror.changed):
            if self._mirror.files.is_file(path):
                self._mirror.copy_to(target, path)

    def sync(self) -> WorkspaceSynced:
        """Download all changes into the mirror; return what changed there."""
        return self._run_sync(partial(sync, self._files))

    def download_all(self, dest: Path) -> WorkspaceSynced:
        """Download everything into a directory; return what changed there."""
        return self._run_sync(partial(download_all, self._files, Path(dest)))

    def _run_sync(self, work: Callable[[OpenContainer], WorkspaceSynced]) -> WorkspaceSynced:
        def dispatched(container: OpenContainer) -> WorkspaceSynced:
            synced = work(container)
            container.dispatch(synced)
            return synced

        return self._run(".", dispatched, check=True)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def read_bytes(self, path: str) -> bytes:
        split(path)
        return self._run(path, partial(self._files.read, path))

    def stat(self, path: str) -> FileStat:
        split(path)
        return self._run(path, partial(self._files.stat, path))

    def list_dir(self, path: str = ".") -> list[str]:
        split(path)
        return self._run(path, partial(self._files.names, path))

    def scan(self, path: str = ".") -> list[FileStat]:
        parts, files = split(path), self._files

        def work(container: OpenContainer) -> list[FileStat]:
            return [files.stat(join((*parts, name)), container) for name in files.names(path, container)]

        return self._run(path, work)

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def write_bytes(self, path: str, content: bytes) -> None:
        split(path)
        copied = bytes(content)

        def work(container: OpenContainer) -> None:
            if (refusal := self.manager.file_type_refusal(lambda: (path,), None)) is not None:
                raise FilesystemError(refusal, path=path)
            self._files.refresh_if_stale(container)
            known = self._files.index.check_writable(path)
            self._log_change(known, container)
            self._files.upload(known, len(copied), lambda: io.BytesIO(copied), container)
            self._mirror.write(known, (copied,))
            self._files.index.mark_mirrored(known)

        self._run(path, work)

    def mkdir(self, path: str) -> None:
        parts = split(path)

        def work(container: OpenContainer) -> None:
            self._files.refresh_if_stale(container)
            self._files.index.check_directories(path, parts)
            if not self._files.index.is_directory(join(parts)):
                self._log_change(join(parts), container)
                self._files.make_directory(join(parts), container)
                self._mirror.files.mkdir(path)

        self._run(path, work)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        if not split(path):
            raise root_not_deletable(path)
        known = normalise(path)

        def work(container: OpenContainer) -> None:
            self._files.refresh_if_stale(container)
            index = self._files.index
            index.find(path)
            if index.is_directory(known) and index.names(known) and not recursive:
                raise not_empty(path)
            self._log_change(known, container)
            self._files.delete(known, container)
            self._mirror.remove(known)

        self._run(path, work)

    # ── snapshots ────────────────────────────────────────────────────────────────────────────────────────────────────

    def snapshot(self) -> ContainerSnapshot:
        """Take a snapshot. It covers changes through this object, not those by code in the container."""
        with self.manager.lock:
            mirror = self._mirror.files.snapshot() if self._mirror.is_open else None
            snapshot = ContainerSnapshot(mirror, self._files.index.created_directories, len(self._changes))
            self._snapshots.add(snapshot)
            return snapshot

    def restore(self, snapshot: object, /) -> None:
        """Undo the changes through this object since the snapshot."""
        with self.manager.lock:
            if not isinstance(snapshot, ContainerSnapshot) or snapshot not in self._snapshots:
                raise FilesystemError("this snapshot was taken of another filesystem", path=".")
            changes = self._changes[snapshot.position :]
            if changes and snapshot.mirror is not None:
                self._mirror.files.restore(snapshot.mirror)
                for path, content in _first_contents(changes).items():
                    self._mirror.write(path, (content,))
                changed = sorted({change.path for change in changes})
                self._changes += [_Change(path) for path in changed]
                self._run(".", partial(self._upload_restored, changed, snapshot.directories))

    def _upload_restored(self, changed: Sequence[str], directories: frozenset[str], container: OpenContainer) -> None:
        """Make the container equal to the restored mirror at the changed paths: delete first, then upload."""
        files, mirror = self._files, self._mirror
        files.refresh_if_stale(container)
        for path in changed:
            is_replaced = files.index.get(path) is not None and mirror.files.is_file(path)
            if not is_replaced and (files.index.get(path) is not None or files.index.is_directory(path)):
                files.delete(path, container)
        for path in [found for top in changed for found in mirror.files_at(top)]:
            files.upload(path, mirror.files.stat(path).size, partial(mirror.open_read, path), container)
            files.index.mark_mirrored(path)
        for path in sorted(directories | {path for path in changed if mirror.files.is_dir(path)}):
            files.make_directory(path, container)

    def _log_change(self, path: str, container: OpenContainer) -> None:
        """Log a change that is about to happen; while a snapshot exists, save what only the container has."""
        if not self._snapshots:
            self._changes.clear()
            return
        for snapshot in self._snapshots:
            if snapshot.mirror is None:  # taken before the mirror was opened, and nothing has changed since
                snapshot.mirror = self._mirror.files.snapshot()
        top = self._files.index.topmost_missing(path)
        self._changes.append(_Change(top, self._files.dirty_content(top, container)))

    def _run(self, path: str, work: Callable[[OpenContainer], T], *, check: bool = False) -> T:
        """Run `work` with the open container; `check` retrieves the container first, whenever it was last used."""
        with self.manager.lock:
            try:
                if check:
                    self.manager.check()
                result = self._files.run(work)
            except ProviderFault as fault:
                raise FilesystemError(f"{path!r}: {fault}", path=path) from fault
            self.manager.report_used()
            return result


def _is_below(path: str, tops: Sequence[str]) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)


def _first_contents(changes: Sequence[_Change]) -> dict[str, bytes]:
    """The content of each file before its first change, where it was not in the mirror."""
    found: dict[str, bytes] = {}
    changed: list[str] = []
    for change in changes:
        found |= {path: content for path, content in change.content_before.items() if not _is_below(path, changed)}
        changed.append(change.path)
    return found
