"""`RemoteFiles`: the files of a container by path; keeps index, mirror and read cache in step with the server.

Calls go one way: `ContainerFilesystem` calls this module, which calls `ContainerManager` for the container and
`ContainerApi` for its files. A container that is new to these files is filled from the mirror by `open`. If it replaces
one that several filesystems share, `open` fills it from the mirrors of all of them, which the manager lists.
"""

from __future__ import annotations

import io
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import BinaryIO, TypeVar

from weakincentives.adapters.openai.containers.api import ContainerGone, FileGone
from weakincentives.adapters.openai.containers.index import FileEntry, FileIndex
from weakincentives.adapters.openai.containers.manager import ContainerManager, OpenContainer
from weakincentives.adapters.openai.containers.mirror import Mirror
from weakincentives.adapters.openai.containers.source import EvaluationScope
from weakincentives.adapters.openai.containers.transfer import (
    Download,
    FileUpload,
    FileUploader,
    Sink,
    fetch_archive,
    fetch_file,
    fetch_files,
    run_parallel,
    send_archive,
)
from weakincentives.errors import ContainerExpiredError, FilesystemError, ProviderFault, WorkspaceError
from weakincentives.filesystem import FileStat
from weakincentives.filesystem.errors import missing_file, not_a_directory, not_a_file
from weakincentives.filesystem.paths import normalise
from weakincentives.runtime import ContainerRecreated

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_MAX_CACHE_BYTES = 64 << 20
_MAX_CACHED_FILE_BYTES = 16 << 20
_MAX_SINGLE_DOWNLOADS = 8  # up to this many files are faster to download one by one than in one archive of all files


class RemoteFiles:
    """The files of one filesystem in the container of a manager, which other filesystems may use too."""

    def __init__(self, manager: ContainerManager, mirror: Mirror) -> None:
        self.index = FileIndex()
        self.mirror = mirror
        self.recreated: ContainerRecreated | None = None
        """The last replacement of the container, with these files only."""
        self.container_id: str | None = None
        """The container that has these files; a gone one until it is replaced."""
        self._manager = manager
        self._possible_changes = 1
        self._uploader = FileUploader()
        self._cache: OrderedDict[tuple[str, int | None, int], bytes] = OrderedDict()
        self._created_at = datetime.now(UTC)

    # ── the container ────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, work: Callable[[OpenContainer], T], scope: EvaluationScope | None = None) -> T:
        """Call `work` with the open container; a second time with a replacement, if the first container is gone."""
        first: ContainerGone | None = None
        while True:
            try:
                return work(self.open(scope))
            except ContainerGone as gone:
                self._manager.report_gone(gone)
                if first is not None:
                    what = f"container {gone.container_id}, which replaced it, is gone too"
                    raise _expired(first.container_id, first, what) from gone
                first = gone

    def open(self, scope: EvaluationScope | None = None) -> OpenContainer:
        """Open a container that has these files. The mirror is opened first: what it refuses costs no container."""
        self._manager.check_not_closed()
        self.mirror.open()
        if self.container_id is None:  # later files are checked when they are written
            refusal = self._manager.file_type_refusal(lambda: (path for path, _ in self.mirror.listing()[0]), scope)
            if refusal is not None:
                raise WorkspaceError(refusal)
        self._manager.attach(self)
        try:
            container = self._manager.ensure(scope)
            if container.id != self.container_id:
                self._fill(container)
        except (ProviderFault, FilesystemError, WorkspaceError) as error:
            _, lost_id = self._users_to_fill()
            if lost_id is None or self._manager.loss is None:
                raise
            raise _expired(lost_id, self._manager.loss, f"a replacement could not be created: {error}") from error
        return container

    def close(self, *, keep_container: bool = False) -> None:
        """Release the container, and remove a temporary mirror."""
        self.container_id = None
        self._manager.release(self, keep=keep_container)
        self.mirror.close()

    def upload_mirror(self, container: OpenContainer) -> FileIndex:
        """Upload the mirror into a container that has none of these files; return the index of the uploaded files."""
        files, directories = self.mirror.listing()
        index = FileIndex()
        for directory in directories:
            index.make_directory(directory)
        now = int(datetime.now(UTC).timestamp())
        uploads: list[FileUpload] = []
        for path, size in files:
            remote_path = index.remote_path_for(path)
            index.put(FileEntry(path, remote_path, None, size, now, is_mirrored=True))
            uploads.append(FileUpload(path, remote_path, size, partial(self.mirror.open_read, path)))
        if not container.takes_archives:
            for file, sent in zip(uploads, self._uploader.send_all(uploads, container), strict=True):
                index.put(FileEntry(file.path, sent.remote_path, sent.id, file.size, sent.created_at, is_mirrored=True))
        elif files or directories:
            send_archive(uploads, list(map(index.remote_path_for, directories)), container)
        return index

    def use_container(self, container_id: str, index: FileIndex, *, is_complete: bool) -> None:
        """Use a container after `upload_mirror`; `is_complete`: it has no other files than those in the index."""
        self.container_id, self.index, self._possible_changes = container_id, index, 0 if is_complete else 1
        self.mirror.uploaded.update(entry.path for entry in index)
        self._cache.clear()

    def owns(self, remote_path: str) -> bool:
        """Whether a file of the container was uploaded from this mirror."""
        return self.index.path_of(remote_path) in self.mirror.uploaded

    def _users_to_fill(self) -> tuple[list[RemoteFiles], str | None]:
        """The users to fill: this one and those that lost an earlier container. Also the id of that container."""
        known = (None, self._manager.container_id)
        users = [one for one in self._manager.users(RemoteFiles) if one is self or one.container_id not in known]
        return users, next((one.container_id for one in users if one.container_id not in known), None)

    def _fill(self, container: OpenContainer) -> None:
        """Upload these files, and those of all users that lost them with an earlier container; report a loss once."""
        users, lost_id = self._users_to_fill()
        try:
            indexes = [user.upload_mirror(container) for user in users]
        except (ProviderFault, FilesystemError, WorkspaceError):
            if all(one.container_id != container.id for one in self._manager.users(RemoteFiles)):
                self._manager.discard()
            raise
        self._manager.report_used()
        lost = _lost_paths(users)
        for user, index in zip(users, indexes, strict=True):
            user.use_container(container.id, index, is_complete=container.is_new and len(users) == 1)
        if lost_id is not None:
            self._report_recreated(lost_id, container, lost)

    def _report_recreated(self, old_id: str, container: OpenContainer, lost: dict[RemoteFiles, set[str]]) -> None:
        restored = tuple(dict.fromkeys(entry.path for user in lost for entry in user.index))
        all_lost = tuple(sorted(set[str]().union(*lost.values())))
        reason = str(self._manager.loss)
        _logger.warning(
            "container %s was gone (%s); %s replaces it, with %d files restored and %d lost",
            *(old_id, reason, container.id, len(restored), len(all_lost)),
        )
        event = ContainerRecreated(
            old_id, container.id, restored, all_lost, reason=reason, session_id=container.session_id
        )
        for user, paths in lost.items():
            own = tuple(entry.path for entry in user.index)
            user.recreated = replace(event, restored=own, lost=tuple(sorted(paths)))
        container.dispatch(event)

    # ── listing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def expect_changes(self) -> None:
        """Count a request that may run code in the container; `index` is out of date until the next listing."""
        self._possible_changes += 1

    def retract_change(self) -> None:
        """Discount a request that ran no code."""
        self._possible_changes = max(0, self._possible_changes - 1)

    def dirty_paths(self) -> tuple[str, ...]:
        """The files whose newest content is only in the container, as of the last listing."""
        return tuple(entry.path for entry in self.index if not entry.is_mirrored)

    def refresh(self, container: OpenContainer) -> None:
        """List the files. If uploaded files are missing, the container itself is checked first."""
        listed = list(container.api.list_files(container.id))
        if self.index.has_missing(listed):
            container.api.require_alive(container.id)
        self.index.refresh(listed)
        self._possible_changes = 0

    def refresh_if_stale(self, container: OpenContainer) -> None:
        """List the files if they may have changed since the last listing."""
        if self._possible_changes:
            self.refresh(container)

    def names(self, path: str, container: OpenContainer) -> list[str]:
        """The names in a directory."""
        self.refresh_if_stale(container)
        if self.index.find(path) is not None:
            raise not_a_directory(path)
        return self.index.names(normalise(path))

    def stat(self, path: str, container: OpenContainer) -> FileStat:
        """Describe a path. If the server lists no size, the file is downloaded to measure it."""
        self.refresh_if_stale(container)
        entry = self.index.find(path)
        if entry is None:
            return FileStat(normalise(path), 0, is_dir=True, modified_at=self._created_at)
        size = len(self._content(entry, container)) if entry.size is None else entry.size
        return FileStat(entry.path, size, is_dir=False, modified_at=datetime.fromtimestamp(entry.created_at, UTC))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, path: str, container: OpenContainer) -> bytes:
        """The content of a file: from the mirror if that has the same, else from the cache or the container."""
        self.refresh_if_stale(container)
        entry = self.index.find(path)
        if entry is None:
            raise not_a_file(path)
        if entry.is_mirrored:
            with suppress(FileNotFoundError):  # deleted from the mirror by other code; the container still has it
                return self.mirror.files.read_bytes(entry.path)
        try:
            return self._content(entry, container)
        except FileGone as gone:
            self.expect_changes()
            raise missing_file(path) from gone

    def dirty_content(self, path: str, container: OpenContainer) -> dict[str, bytes]:
        """The content of the file at a path, or of those below it, that only the container has."""
        return {one.path: self._content(one, container) for one in self.index.files_at(path) if not one.is_mirrored}

    def _content(self, entry: FileEntry, container: OpenContainer) -> bytes:
        """Download a file, through a cache whose key changes with the content: id, size and time of creation."""
        entry = self._with_id(entry, container)
        key = (entry.file_id or "", entry.size, entry.created_at)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        target = io.BytesIO()
        fetch_file(entry, target, container)
        content = target.getvalue()
        if entry.size is not None and len(content) <= _MAX_CACHED_FILE_BYTES:
            self._cache[key] = content
            while sum(map(len, self._cache.values())) > _MAX_CACHE_BYTES:
                self._cache.popitem(last=False)
        return content

    def _with_id(self, entry: FileEntry, container: OpenContainer) -> FileEntry:
        """The same file with its id, which is unknown after an archive upload until the files are listed."""
        if entry.file_id is not None:
            return entry
        self.refresh(container)
        found = self.index.get(entry.path)
        if found is None:
            raise missing_file(entry.path)
        return found

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def upload(self, path: str, size: int, source: Callable[[], BinaryIO], container: OpenContainer) -> None:
        """Upload a file, then delete the one that it replaces."""
        before, remote_path = self.index.get(path), self.index.remote_path_for(path)
        if before is not None and before.remote_path != remote_path:
            before = self._with_id(before, container)
        created = self._uploader.send(FileUpload(path, remote_path, size, source), container)
        self.index.put(FileEntry(path, created.remote_path, created.id, size, created.created_at))
        if before is not None and before.file_id not in (None, created.id):
            _delete_file(before, container)

    def delete(self, path: str, container: OpenContainer) -> None:
        """Delete a file, or a directory with its content."""
        is_file = self.index.get(path) is not None
        if any(entry.file_id is None for entry in self.index.files_at(path)):
            self.refresh(container)
        run_parallel([partial(_delete_file, entry, container) for entry in self.index.files_at(path)], lambda: None)
        if not is_file:
            self.index.remove_directory(path)
        elif self.index.get(path) is not None:
            self.index.remove(path)

    def make_directory(self, path: str, container: OpenContainer) -> None:
        """Create a directory. Without the archive extension it exists in the index only."""
        if not self.index.is_directory(path):
            if container.takes_archives:
                send_archive([], [self.index.remote_path_for(path)], container)
            self.index.make_directory(path)

    # ── downloading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def fetch(self, wanted: Sequence[FileEntry], sink: Sink, container: OpenContainer) -> Download:
        """Download files into a sink by the faster transfer."""
        if container.takes_archives and len(wanted) > _MAX_SINGLE_DOWNLOADS:
            paths = {one.remote_path: one.path for one in wanted}
            return fetch_archive(paths.get, sink, container, [one.size or 0 for one in wanted])
        return fetch_files([self._with_id(entry, container) for entry in wanted], sink, container)

    def fetch_all(self, sink: Sink, container: OpenContainer) -> Download | None:
        """Download everything as one archive, without a listing; None if another transfer is faster."""
        is_faster = self._possible_changes or len(self.dirty_paths()) > _MAX_SINGLE_DOWNLOADS
        return fetch_archive(self.index.path_of, sink, container) if container.takes_archives and is_faster else None


def _delete_file(entry: FileEntry, container: OpenContainer) -> None:
    with suppress(FileGone):
        container.api.delete_file(container.id, entry.file_id or "")


def _lost_paths(users: Sequence[RemoteFiles]) -> dict[RemoteFiles, set[str]]:
    """The files whose newest content is in no mirror, by the user that uploaded them or else listed them."""
    lost: dict[RemoteFiles, set[str]] = {user: set() for user in users}
    for user in users:
        for entry in user.index:
            if not entry.is_mirrored and not any(one.index.has_mirrored(entry) for one in users):
                owner = next((one for one in (user, *users) if one.owns(entry.remote_path)), user)
                lost[owner].add(owner.index.path_of(entry.remote_path))
    return lost


def _expired(container_id: str, gone: ContainerGone, what: str) -> ContainerExpiredError:
    return ContainerExpiredError(
        f"container {container_id} is gone ({gone}), and {what}. The files in the local mirror are safe; try again, or "
        "sync earlier",
        container_id=container_id,
        original_error=gone,
    )
