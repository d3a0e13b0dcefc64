"""`ContainerFilesystem`: the files of a container as a `Filesystem`.

Three things are kept beside the container: an index of what is in it (`container_index`), a mirror on this machine with
all whose content we know (`container_mirror`), and a cache of what was read. The mirror is what a container that is
gone is restored from: the files that it began with, and everything that was written or synced through here.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from weakincentives.adapters.openai.config import ContainerConfig
from weakincentives.adapters.openai.containers.files import ContainerContents
from weakincentives.adapters.openai.containers.manager import ContainerManager
from weakincentives.adapters.openai.containers.mirror import Mirror
from weakincentives.adapters.openai.containers.sync import download_all, sync
from weakincentives.errors import FilesystemError, ProviderFault
from weakincentives.filesystem import FileStat, FilesystemBase, HostFilesystem, HostSnapshot
from weakincentives.filesystem.errors import directory_not_empty, root_not_deletable
from weakincentives.filesystem.paths import join, normalise, split
from weakincentives.runtime import WorkspaceSynced

if TYPE_CHECKING:
    from openai import OpenAI

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Change:
    """A path that was changed, and what was at it or below it that the mirror did not have."""

    path: str
    rescued: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


class ContainerSnapshot:
    """A moment of one `ContainerFilesystem`, to hand back to its `restore`."""

    __slots__ = ("__weakref__", "made", "mirror", "position")

    def __init__(self, mirror: HostSnapshot | None, made: frozenset[str], position: int) -> None:
        self.mirror = mirror
        self.made = made
        self.position = position


class ContainerFilesystem(FilesystemBase):
    """A `Filesystem` over a container, which is made when it is first needed.

    A container that has expired is replaced, and gets back all that is mirrored here; `ContainerRecreated` says what
    was lost. What code in the container does is seen after a `refresh`, which a workspace does after every turn.

    `tarball_path` is a tar of the files to begin with. `local_root` is the mirror: a directory, or a function that
    makes one when it is needed; what it holds is put into the container. Without it there is a temporary one.
    Threads may share it; they take turns.
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
        self._contents = ContainerContents(self.manager, self._mirror)
        self._log: list[_Change] = []
        self._snapshots: WeakSet[ContainerSnapshot] = WeakSet()

    def __repr__(self) -> str:
        return f"ContainerFilesystem({self.container_id!r})"

    @property
    def container_id(self) -> str | None:
        """The container's id, or None if there is none yet."""
        return self.manager.container_id

    def ensure_container(self) -> str:
        """Make the container if need be, with the files that it begins with, and return its id."""
        with self.manager.lock:
            self.manager.admit(self._contents)
            return self.manager.ensure()

    def cleanup(self, *, keep_container: bool = False) -> None:
        """Release everything: the container, if it was made here and nobody else uses it, and a temporary mirror."""
        with self.manager.lock:
            self.manager.release(self._contents, keep=keep_container)
            self._mirror.close()

    # ── what code in the container has done ──────────────────────────────────────────────────────────────────────────

    def refresh(self) -> None:
        """Look at what is in the container now."""
        self._run(".", self._contents.refresh)

    def look_again(self, container_id: str) -> None:
        """The same for a container that was just used; where it is gone by now, that is left to whoever needs it."""
        with self.manager.lock:
            if self.container_id == container_id:
                self._contents.refresh(container_id)

    def expect_changes(self) -> None:
        """Somebody is about to work in the container: what is known of it will have to be asked anew."""
        self._contents.was_stale, self._contents.is_stale = self._contents.is_stale, True

    def nothing_changed(self) -> None:
        """Nobody did, after all."""
        self._contents.is_stale = self._contents.was_stale

    def elsewhere(self) -> dict[str, str]:
        """Where the files are that do not lie in the container where their paths say."""
        return self._contents.index.elsewhere()

    def known_paths(self) -> tuple[str, ...]:
        """The files that were there when it was last looked at. Asks nobody."""
        return tuple(sorted(entry.path for entry in self._contents.index))

    def unsaved(self) -> tuple[str, ...]:
        """Those of them whose newest content is in the container only."""
        return self._contents.unsaved()

    def copy_results(self, target: HostFilesystem) -> None:
        """Copy the files of the mirror that are new, or not what they were when it was made."""
        for path in sorted(self._mirror.changed):
            if self._mirror.files.is_file(path):
                self._mirror.copy(path, target)

    def sync(self) -> WorkspaceSynced:
        """Bring everything in the container into the mirror, and say what is different there now."""
        return self._told(self._run(".", partial(sync, self._contents, self._mirror), ask=True))

    def download_all(self, dest: Path) -> WorkspaceSynced:
        """Bring everything in the container into a directory, and say what is different there now."""
        return self._told(self._run(".", partial(download_all, self._contents, self._mirror, Path(dest)), ask=True))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def read_bytes(self, path: str) -> bytes:
        split(path)
        return self._run(path, partial(self._contents.read, path))

    def stat(self, path: str) -> FileStat:
        split(path)
        return self._run(path, partial(self._contents.stat, path))

    def list_dir(self, path: str = ".") -> list[str]:
        split(path)
        return self._run(path, partial(self._contents.names, path))

    def scan(self, path: str = ".") -> list[FileStat]:
        parts, contents = split(path), self._contents

        def work(container: str) -> list[FileStat]:
            return [contents.stat(join((*parts, name)), container) for name in contents.names(path, container)]

        return self._run(path, work)

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def write_bytes(self, path: str, content: bytes) -> None:
        split(path)
        copied = bytes(content)

        def work(container: str) -> None:
            self._contents.look(container)
            known = self._contents.index.check_writable(path)
            self._note(known, container)
            self._contents.upload(known, len(copied), lambda: io.BytesIO(copied), container)
            self._mirror.put(known, (copied,))
            self._contents.index.save(known)

        self._run(path, work)

    def mkdir(self, path: str) -> None:
        parts = split(path)

        def work(container: str) -> None:
            self._contents.look(container)
            self._contents.index.refuse_file_on_the_way(path, parts)
            if not self._contents.index.is_directory(join(parts)):
                self._note(join(parts), container)
                self._contents.make_directory(join(parts), container)
                self._mirror.files.mkdir(path)

        self._run(path, work)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        if not split(path):
            raise root_not_deletable(path)
        known = normalise(path)

        def work(container: str) -> None:
            self._contents.look(container)
            index = self._contents.index
            index.find(path)
            if index.is_directory(known) and index.names(known) and not recursive:
                raise directory_not_empty(path)
            self._note(known, container)
            self._contents.delete(known, container)
            self._mirror.remove(known)

        self._run(path, work)

    # ── snapshots ────────────────────────────────────────────────────────────────────────────────────────────────────

    def snapshot(self) -> ContainerSnapshot:
        """The present moment. It covers what is changed through here, not what code in the container does."""
        with self.manager.lock:
            mirror = self._mirror.snapshot() if self._mirror.is_open else None
            snapshot = ContainerSnapshot(mirror, self._contents.index.made, len(self._log))
            self._snapshots.add(snapshot)
            return snapshot

    def restore(self, snapshot: object, /) -> None:
        """Put back what was changed through here since then."""
        with self.manager.lock:
            if not isinstance(snapshot, ContainerSnapshot) or snapshot not in self._snapshots:
                raise FilesystemError("this snapshot was taken of another filesystem", path=".")
            since = self._log[snapshot.position :]
            if since and snapshot.mirror is not None:
                self._mirror.restore(snapshot.mirror)
                for path, content in _rescued(since).items():
                    self._mirror.put(path, (content,))
                changed = sorted({change.path for change in since})
                self._log += [_Change(path) for path in changed]
                self._run(".", partial(self._put_back, changed, snapshot.made))

    def _put_back(self, changed: Sequence[str], made: frozenset[str], container: str) -> None:
        """Let the container follow the mirror: first what has to go, then what has to come."""
        contents, mirror = self._contents, self._mirror
        contents.look(container)
        for path in changed:
            is_replaced = contents.index.get(path) is not None and mirror.files.is_file(path)
            if not is_replaced and (contents.index.get(path) is not None or contents.index.is_directory(path)):
                contents.delete(path, container)
        for path in [found for top in changed for found in mirror.files_at(top)]:
            contents.upload(path, mirror.files.stat(path).size, partial(mirror.open_read, path), container)
            contents.index.save(path)
        for path in sorted(made | {path for path in changed if mirror.files.is_dir(path)}):
            contents.make_directory(path, container)

    def _note(self, path: str, container: str) -> None:
        """A path is about to be changed. Where somebody may want it back, what only the container has is kept."""
        if not self._snapshots:
            self._log.clear()
            return
        for snapshot in self._snapshots:
            if snapshot.mirror is None:  # it is from before anything was opened, when all was as it is now
                snapshot.mirror = self._mirror.snapshot()
        top = self._contents.index.topmost_missing(path)
        self._log.append(_Change(top, self._contents.unsaved_at(top, container)))

    # ── how anything is done ─────────────────────────────────────────────────────────────────────────────────────────

    def _run(self, path: str, work: Callable[[str], T], *, ask: bool = False) -> T:
        """Do something in the container; where all of it counts, `ask` after the container first."""
        with self.manager.lock:
            self.manager.admit(self._contents)
            try:
                if ask:
                    self.manager.check()
                return self.manager.run(work)
            except ProviderFault as fault:
                raise FilesystemError(f"{path!r}: {fault}", path=path) from fault

    def _told(self, synced: WorkspaceSynced) -> WorkspaceSynced:
        synced = replace(synced, session_id=self.manager.session_id)
        self.manager.tell(synced)
        return synced


def _rescued(changes: Sequence[_Change]) -> dict[str, bytes]:
    """What files held before the first of these changes to them, where only the container knew."""
    found: dict[str, bytes] = {}
    changed: list[str] = []
    for change in changes:
        untouched = {path for path in change.rescued if not any(_is_below(path, earlier) for earlier in changed)}
        found |= {path: change.rescued[path] for path in untouched}
        changed.append(change.path)
    return found


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")
