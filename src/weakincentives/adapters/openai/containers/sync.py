"""Sync and download of all files of a container to a host directory, with a summary of what changed there."""

from __future__ import annotations

from pathlib import Path

from weakincentives.adapters.openai.containers.files import RemoteFiles
from weakincentives.adapters.openai.containers.manager import OpenContainer
from weakincentives.adapters.openai.containers.transfer import PATH_ERRORS, Download
from weakincentives.filesystem import HostFilesystem
from weakincentives.filesystem.paths import join, split
from weakincentives.runtime import WorkspaceSynced


def sync(files: RemoteFiles, container: OpenContainer) -> WorkspaceSynced:
    """Make the mirror equal to the container. Files that were never in the container stay."""
    files.refresh(container)
    index, mirror, local = files.index, files.mirror, files.mirror.files
    wanted = [entry for entry in index if not (entry.is_mirrored and local.is_file(entry.path))]
    known = {entry.path for entry in wanted if local.is_file(entry.path)}
    result = files.fetch(wanted, mirror.write, container)
    for path, size in result.sizes.items():
        entry = index.get(path)
        if entry is not None and entry.size in (None, size):
            index.mark_mirrored(path)
    removed = [path for path in sorted(mirror.uploaded) if index.get(path) is None and local.is_file(path)]
    for path in removed:
        local.delete(path)
    mirror.uploaded -= set(removed)
    return _summary(result, known, local, files, container, removed=tuple(removed))


def download_all(files: RemoteFiles, dest: Path, container: OpenContainer) -> WorkspaceSynced:
    """Download everything to another directory, which is created if necessary. Nothing there is removed."""
    dest.mkdir(parents=True, exist_ok=True)
    target = HostFilesystem(dest)
    known = {join((*split(directory), name)) for directory, _, names in target.walk() for name in names}
    archive = files.fetch_all(target.write_chunks, container)
    if archive is not None:
        return _summary(archive, known, target, None, container)
    files.refresh(container)
    mirrored = {one.path for one in files.index if one.is_mirrored and files.mirror.files.is_file(one.path)}
    result = files.fetch([one for one in files.index if one.path not in mirrored], target.write_chunks, container)
    for path in sorted(mirrored):
        try:
            files.mirror.copy_to(target, path)
        except PATH_ERRORS as error:
            result.refused.append((path, str(error)))
        else:
            result.sizes[path] = target.stat(path).size
    return _summary(result, known, target, files, container)


def _summary(
    result: Download,
    known: set[str],
    directory: HostFilesystem,
    listed: RemoteFiles | None,
    container: OpenContainer,
    removed: tuple[str, ...] = (),
) -> WorkspaceSynced:
    """`known` are the paths that existed before; `listed` is None for a download without a listing."""
    received = sorted(result.sizes)
    return WorkspaceSynced(
        container_id=container.id,
        directory=directory.root,
        added=tuple(path for path in received if path not in known),
        changed=tuple(path for path in received if path in known),
        removed=removed,
        refused=(*(listed.index.refused if listed else ()), *result.refused),
        unchanged=len(listed.index) - len(received) - len(result.refused) if listed else 0,
        bytes=sum(result.sizes.values()),
        session_id=container.session_id,
    )
