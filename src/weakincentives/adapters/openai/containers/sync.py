"""All files of a container, brought to a directory of this machine; and what is different there afterwards."""

from __future__ import annotations

from pathlib import Path

from weakincentives.adapters.openai.containers.files import ContainerContents
from weakincentives.adapters.openai.containers.mirror import Mirror
from weakincentives.adapters.openai.containers.transfer import Refused
from weakincentives.errors import InvalidPathError, NotADirectoryPathError, NotAFileError
from weakincentives.filesystem import HostFilesystem
from weakincentives.filesystem.paths import join, split
from weakincentives.runtime import WorkspaceSynced


def sync(contents: ContainerContents, mirror: Mirror, container: str) -> WorkspaceSynced:
    """Make the mirror what the container is. What is there and never was in the container stays."""
    contents.refresh(container)
    index, files = contents.index, mirror.files
    wanted = [entry for entry in index if not (entry.is_saved and files.is_file(entry.path))]
    known = {entry.path for entry in wanted if files.is_file(entry.path)}
    came, refused = contents.fetch(wanted, mirror.put, container)
    for path, size in came.items():
        entry = index.get(path)
        if entry is not None and entry.size in (None, size):
            index.save(path)
    removed = [path for path in sorted(mirror.sent) if index.get(path) is None and files.is_file(path)]
    for path in removed:
        files.delete(path)
    mirror.sent -= set(removed)
    return _summary(contents, files, container, came, known, refused, removed=tuple(removed))


def download_all(contents: ContainerContents, mirror: Mirror, dest: Path, container: str) -> WorkspaceSynced:
    """Bring everything to another directory, which is made if need be; nothing there is removed."""
    dest.mkdir(parents=True, exist_ok=True)
    target = HostFilesystem(dest)
    known = {join((*split(directory), name)) for directory, _, names in target.walk() for name in names}
    whole = contents.fetch_all(target.write_chunks, container)
    if whole is not None:
        return _summary(contents, target, container, whole[0], known, whole[1], listed=False)
    contents.refresh(container)
    kept = {entry.path for entry in contents.index if entry.is_saved and mirror.files.is_file(entry.path)}
    wanted = [entry for entry in contents.index if entry.path not in kept]
    came, refused = contents.fetch(wanted, target.write_chunks, container)
    for path in sorted(kept):
        try:
            mirror.copy(path, target)
        except (InvalidPathError, NotAFileError, NotADirectoryPathError) as error:
            refused.append((path, str(error)))
        else:
            came[path] = target.stat(path).size
    return _summary(contents, target, container, came, known, refused)


def _summary(
    contents: ContainerContents,
    directory: HostFilesystem,
    container: str,
    came: dict[str, int],
    known: set[str],
    refused: Refused,
    removed: tuple[str, ...] = (),
    *,
    listed: bool = True,
) -> WorkspaceSynced:
    return WorkspaceSynced(
        container_id=container,
        directory=directory.root,
        added=tuple(path for path in sorted(came) if path not in known),
        changed=tuple(path for path in sorted(came) if path in known),
        removed=removed,
        refused=(*contents.index.refused, *refused) if listed else tuple(refused),
        unchanged=len(contents.index) - len(came) - len(refused) if listed else 0,
        bytes=sum(came.values()),
    )
