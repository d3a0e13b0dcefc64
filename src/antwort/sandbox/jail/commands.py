"""Shell commands: each runs in a process of its own, with the descriptors that the server sent for its output.

Like the runner this is no protection. The output goes to pipes of this command alone, so that neither the code of the
interpreter nor a process that an earlier command left in the background can write into it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any, Final

_SHELLS: Final = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
_EXIT_NOT_STARTED: Final = 126  # as a shell reports a program that cannot be executed
_SIGNAL_EXIT_BASE: Final = 128


class CommandRunner:
    """Runs one command at a time. Directory and environment are those of the start, whatever the code changes later."""

    def __init__(self) -> None:
        self._directory = os.getcwd()  # noqa: PTH109 - a string
        # A file that is edited twice within a second would be run from the bytecode of its first version.
        self._environment = {"PYTHONDONTWRITEBYTECODE": "1", **os.environ}
        self._start = subprocess.Popen[bytes]
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def add_python_path(self, path: str) -> None:
        """Make the modules of this directory importable for the Python of later commands."""
        earlier = self._environment.get("PYTHONPATH")
        self._environment["PYTHONPATH"] = ":".join(filter(None, (earlier, path)))

    def run(self, command: str, descriptors: list[int]) -> dict[str, Any]:
        """Run the command, and wait for its shell; the reply. Processes that it leaves in the background continue."""
        self._is_stopped = False
        output, errors = descriptors
        # Ignored, as the code may have set it, the exit code would be lost.
        on_exit = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            exit_code = self._wait(command, output, errors)
        except (OSError, ValueError) as error:
            os.write(errors, f"the command could not be started: {error}\n".encode(errors="replace"))
            exit_code = _EXIT_NOT_STARTED
        finally:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL if on_exit is None else on_exit)
            self._process = None
            for descriptor in descriptors:
                os.close(descriptor)
        status = "interrupted" if self._is_stopped else "exit"
        return {"status": status, "exit_code": exit_code if exit_code >= 0 else _SIGNAL_EXIT_BASE - exit_code}

    def _wait(self, command: str, output: int, errors: int) -> int:
        shell = next((path for path in _SHELLS if os.access(path, os.X_OK)), _SHELLS[-1])
        self._process = process = self._start(
            [shell, "-c", command],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        if self._is_stopped:  # while it was started
            self.stop()
        return process.wait()

    def stop(self) -> None:
        """Kill the command and its process group. Called by the signal handler; the server kills what has left it."""
        self._is_stopped = True
        if (process := self._process) is not None and process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
