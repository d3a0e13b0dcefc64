"""Conformance suite of sandbox backends (`Sandboxes`): tests that every implementation passes.

pytest with anyio's plugin collects them from a subclass; the backend under test is the
fixture `sandboxes`:

    import pytest
    from antwort.testing.sandbox_backend import SandboxesConformance

    @pytest.fixture(scope="module")
    async def sandboxes():
        backend = MySandboxes()
        yield backend
        await backend.aclose()

    @pytest.mark.anyio
    class TestMySandboxes(SandboxesConformance):
        pass

The backend has the memory limit `1g`, and capacity for five sandboxes. The assertions are
plain `AssertionError`s with both sides in the message.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from antwort.containers.sandboxes.port import ExecutionResult, Output, Sandbox, Sandboxes, SandboxLost, SandboxRefused
from antwort.testing.checks import check, check_equal

_TIMEOUT = 60.0
_MORE_THAN_THE_DISK = 600 << 20


class SandboxesConformance:
    """Subclass it, and give it the fixture `sandboxes`."""

    @pytest.fixture
    async def sandbox(self, sandboxes: Sandboxes) -> AsyncGenerator[Sandbox]:
        """Fixture: an acquired sandbox of one test."""
        async with acquired(sandboxes) as sandbox:
            yield sandbox

    # ── execution ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_output_is_streamed_and_the_last_value_is_echoed(self, sandbox: Sandbox) -> None:
        steps = await steps_of(sandbox, "import sys\nprint('grüße 🎈')\nprint('oh', file=sys.stderr)\n6 * 7")
        result = _result(steps)
        check_equal(result.status, "ok")
        check_equal(result.echo, "42")
        check_equal(printed(result), "grüße 🎈\noh\n")
        check_equal([piece.stream for piece in result.output], ["stdout", "stderr"])
        live = "".join(step.text for step in steps if isinstance(step, Output))
        check_equal(live, "grüße 🎈\noh\n")
        check_equal(result.sandbox_alive, expected=True)

    async def test_output_arrives_while_the_code_runs(self, sandbox: Sandbox) -> None:
        run = sandbox.run("print('begun', flush=True)\nwhile True: pass", timeout=_TIMEOUT)
        async with aclosing(run) as steps:
            first = await anext(steps)
            check_equal(first, Output("stdout", "begun\n"))
        result = await result_of(sandbox, "'still here'")  # closing the generator has interrupted the code
        check_equal(result.echo, "'still here'")

    async def test_variables_persist(self, sandbox: Sandbox) -> None:
        await result_of(sandbox, "x = 20")
        check_equal((await result_of(sandbox, "x + 1")).echo, "21")

    async def test_an_exception_is_a_result_with_its_traceback(self, sandbox: Sandbox) -> None:
        result = await result_of(sandbox, "print('before')\n1 / 0")
        check_equal(result.status, "error")
        check("before" in printed(result), f"the output before it is kept: {printed(result)!r}")
        check("ZeroDivisionError" in printed(result), f"the traceback is in the output: {printed(result)!r}")
        check_equal(result.sandbox_alive, expected=True)

    async def test_a_syntax_error_is_a_result(self, sandbox: Sandbox) -> None:
        result = await result_of(sandbox, "def")
        check_equal(result.status, "error")
        check("SyntaxError" in printed(result), f"says what is wrong: {printed(result)!r}")

    async def test_a_timeout_interrupts_the_code_and_keeps_variables(self, sandbox: Sandbox) -> None:
        await result_of(sandbox, "x = 1")
        result = await result_of(sandbox, "print('begun')\nwhile True: pass", seconds=1)
        check_equal(result.status, "timeout")
        check("begun" in printed(result), f"the output is kept: {printed(result)!r}")
        check_equal(result.sandbox_alive, expected=True)
        check_equal((await result_of(sandbox, "x")).echo, "1")

    async def test_a_run_can_be_interrupted(self, sandbox: Sandbox) -> None:
        run = sandbox.run("print('begun', flush=True)\nwhile True: pass", timeout=_TIMEOUT)
        async with aclosing(run) as steps:
            await anext(steps)
            await sandbox.interrupt()
            rest = [step async for step in steps]
        check_equal(_result(rest).status, "interrupted")

    async def test_out_of_memory_ends_the_sandbox_with_status_oom(self, sandbox: Sandbox) -> None:
        result = await result_of(sandbox, "x = [bytearray(64 << 20) for _ in range(64)]")
        if result.status == "error":  # with a limit on the process, Python raises MemoryError
            check("MemoryError" in printed(result), f"says why: {printed(result)!r}")
            return
        check_equal((result.status, result.sandbox_alive), ("oom", False))
        await raises_lost(result_of(sandbox, "1"))

    async def test_an_interpreter_that_exits_is_lost(self, sandbox: Sandbox) -> None:
        result = await result_of(sandbox, "import os\nprint('last words', flush=True)\nos._exit(3)")
        check_equal((result.status, result.sandbox_alive), ("ended", False))
        check("last words" in printed(result), f"the output is kept: {printed(result)!r}")
        check(bool(result.reason), "says why it ended")
        await raises_lost(result_of(sandbox, "1"))
        await raises_lost(sandbox.list_files())

    async def test_figures_are_png_images(self, sandbox: Sandbox) -> None:
        result = await result_of(sandbox, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
        check_equal([(figure.mime, figure.data[:4]) for figure in result.figures], [("image/png", b"\x89PNG")])

    async def test_long_output_is_truncated(self, sandbox: Sandbox) -> None:
        result = await result_of(sandbox, "for n in range(700_000): print(f'{n:099}')")
        check_equal(result.status, "ok")
        check(result.cut_bytes > 0, "70 MB of output are truncated")
        check(printed(result).rstrip().endswith("699999"), "the end of it is kept")

    async def test_five_megabytes_of_code(self, sandbox: Sandbox) -> None:
        check_equal((await result_of(sandbox, f"x = '{'a' * 5_000_000}'\nlen(x)")).echo, "5000000")

    # ── shell commands ───────────────────────────────────────────────────────────────────────────────────────────────

    async def test_commands_have_exit_codes_and_separate_streams(self, sandbox: Sandbox) -> None:
        result = await command_result(sandbox, "echo grüße; echo oh >&2; exit 3")
        check_equal((result.status, result.exit_code, result.sandbox_alive), ("exit", 3, True))
        texts = {name: "".join(o.text for o in result.output if o.stream == name) for name in ("stdout", "stderr")}
        check_equal(texts, {"stdout": "grüße\n", "stderr": "oh\n"})

    async def test_a_command_past_its_timeout_is_killed(self, sandbox: Sandbox) -> None:
        result = await command_result(sandbox, "echo begun; (trap '' TERM INT; sleep 60) & sleep 60", seconds=0.5)
        check_equal((result.status, result.sandbox_alive, printed(result)), ("timeout", True, "begun\n"))

    async def test_commands_and_code_share_files_only(self, sandbox: Sandbox) -> None:
        await result_of(sandbox, "x = 1; open('from_code', 'w').write('1')")
        check_equal(printed(await command_result(sandbox, "cd /; x=2; cat /mnt/data/from_code")), "1")
        check_equal(printed(await command_result(sandbox, "echo $x; pwd; echo 3 > from_shell")), "\n/mnt/data\n")
        check_equal((await result_of(sandbox, "x, open('from_shell').read()")).echo, repr((1, "3\n")))

    async def test_skills_can_be_read_and_not_changed(self, sandbox: Sandbox) -> None:
        await sandbox.add_skill("a-skill", chunks(tar({"SKILL.md": b"how to", "lib/x.py": b"x = 1"})))
        result = await command_result(sandbox, 'cd "$SKILLS_DIR/a-skill" && cat SKILL.md lib/x.py && touch y')
        check("how tox = 1" in printed(result), f"its files are there: {printed(result)!r}")
        check(result.exit_code != 0, "nothing can be written")
        await raises_refused(sandbox.add_skill("a-skill", chunks(tar({"../x": b""}))))
        await raises_refused(sandbox.add_skill("a\\b", chunks(tar({"x": b""}))))
        check_equal(await sandbox.list_files(), [])

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_files_are_written_listed_read_and_deleted(self, sandbox: Sandbox) -> None:
        content = bytes(range(256)) * 4096
        check_equal((await sandbox.write_file("a dir/grüße 🎈?#%.bin", chunks(content, 100_000))).size, len(content))
        result = await result_of(sandbox, "open('/mnt/data/a dir/grüße 🎈?#%.bin', 'rb').read()[:3]")
        check_equal(result.echo, repr(content[:3]))
        await result_of(sandbox, "open('made.txt', 'w').write('made')")
        listed = {file.path: file.size for file in await sandbox.list_files()}
        check_equal(listed, {"a dir/grüße 🎈?#%.bin": len(content), "made.txt": 4})
        check_equal(await read(sandbox.read_file("a dir/grüße 🎈?#%.bin")), content)
        check_equal(await sandbox.delete_file("made.txt"), expected=True)
        check_equal(await sandbox.delete_file("made.txt"), expected=False)
        check_equal([file.path for file in await sandbox.list_files()], ["a dir/grüße 🎈?#%.bin"])

    async def test_a_rewritten_file_has_another_modification_time(self, sandbox: Sandbox) -> None:
        await result_of(sandbox, "open('x', 'w').write('1')")
        before = await sandbox.list_files()
        await result_of(sandbox, "import time; time.sleep(0.05); open('x', 'w').write('2')")
        check(await sandbox.list_files() != before, "same size, another time")

    async def test_a_file_is_replaced(self, sandbox: Sandbox) -> None:
        await sandbox.write_file("x", chunks(b"a longer text"))
        written = await sandbox.write_file("x", chunks(b"short"))
        check_equal(await sandbox.list_files(), [written])
        check_equal(await read(sandbox.read_file("x")), b"short")

    async def test_an_empty_file(self, sandbox: Sandbox) -> None:
        check_equal((await sandbox.write_file("empty", chunks(b""))).size, 0)
        check_equal(await read(sandbox.read_file("empty")), b"")

    async def test_paths_outside_of_the_data_directory_are_refused(self, sandbox: Sandbox) -> None:
        for path in ("../x", "/etc/x", "a/../../x", "", ".", "a//b", "a\nb"):
            check_equal((await raises_refused(sandbox.write_file(path, chunks(b"x")))).why, "path")
        check_equal(await sandbox.list_files(), [])

    async def test_links_are_neither_listed_nor_followed(self, sandbox: Sandbox) -> None:
        await result_of(sandbox, "import os; os.symlink('/etc/passwd', 'x')")
        check_equal(await sandbox.list_files(), [])
        await raises_refused(read(sandbox.read_file("x")))

    async def test_a_missing_file_is_refused_as_missing(self, sandbox: Sandbox) -> None:
        check_equal((await raises_refused(read(sandbox.read_file("nothing")))).why, "missing")

    async def test_a_full_disk_is_refused_and_leaves_no_file(self, sandbox: Sandbox) -> None:
        much = chunks(bytes(_MORE_THAN_THE_DISK), 1 << 20)
        check_equal((await raises_refused(sandbox.write_file("much", much))).why, "size")
        check_equal(await sandbox.list_files(), [])
        check_equal((await sandbox.write_file("little", chunks(b"x"))).size, 1)

    async def test_an_upload_that_raises_leaves_no_file(self, sandboxes: Sandboxes) -> None:
        async def half() -> AsyncIterator[bytes]:
            yield b"half of it"
            raise _UploadFailed

        async with acquired(sandboxes) as sandbox:
            try:
                await sandbox.write_file("x", half())
            except _UploadFailed:
                pass
            else:
                raise AssertionError("an exception of the content is raised")
            async with asyncio.timeout(_TIMEOUT):
                while await sandbox.list_files():  # noqa: ASYNC110 - the server does not notify
                    await asyncio.sleep(0.01)

    async def test_archives_are_unpacked_and_packed(self, sandbox: Sandbox) -> None:
        await sandbox.unpack(chunks(tar({"a/b.txt": b"one", "c.txt": b"two"}), 512))
        check_equal({file.path for file in await sandbox.list_files()}, {"a/b.txt", "c.txt"})
        packed = await read(sandbox.pack())
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            files = {file.name.removeprefix("./"): archive.extractfile(file) for file in archive if file.isfile()}
            check_equal(
                {name: file.read() for name, file in files.items() if file}, {"a/b.txt": b"one", "c.txt": b"two"}
            )

    async def test_an_archive_with_a_path_outside_is_refused(self, sandbox: Sandbox) -> None:
        await raises_refused(sandbox.unpack(chunks(tar({"../x": b"one"}))))
        await raises_refused(sandbox.unpack(chunks(b"no archive at all" * 100)))

    # ── acquire and release ────────────────────────────────────────────────────────────────────────────────

    async def test_sandboxes_are_isolated(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as one, acquired(sandboxes) as other:
            await result_of(one, "x = 1; open('x', 'w').write('x')")
            check_equal((await result_of(other, "x")).status, "error")
            check_equal(await other.list_files(), [])
            check(one.id != other.id, "their ids differ")

    async def test_five_sandboxes_at_once(self, sandboxes: Sandboxes) -> None:
        wanted = [sandboxes.acquire(tenant="t", memory_limit="1g", timeout=_TIMEOUT) for _ in range(5)]
        held = await asyncio.gather(*wanted)
        try:
            echoes = await asyncio.gather(*(result_of(one, f"{number} * 2") for number, one in enumerate(held)))
            check_equal([result.echo for result in echoes], ["0", "2", "4", "6", "8"])
        finally:
            await asyncio.gather(*map(sandboxes.release, held))

    async def test_an_unknown_memory_limit_is_refused(self, sandboxes: Sandboxes) -> None:
        refused = await raises_refused(sandboxes.acquire(tenant="t", memory_limit="3g", timeout=_TIMEOUT))
        check_equal(refused.why, "tier")

    async def test_a_released_sandbox_is_lost(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            await result_of(sandbox, "x = 1")
        await raises_lost(result_of(sandbox, "x"))
        await raises_lost(sandbox.list_files())
        await raises_lost(read(sandbox.read_file("x")))
        await sandboxes.release(sandbox)


# ── helpers ──────────────────────────────────────────────────────────────────────────────────────────


class _UploadFailed(Exception):
    """Raised by the content of an upload."""


@asynccontextmanager
async def acquired(sandboxes: Sandboxes) -> AsyncGenerator[Sandbox]:
    """Acquire a sandbox, and release it."""
    sandbox = await sandboxes.acquire(tenant="t", memory_limit="1g", timeout=_TIMEOUT)
    try:
        yield sandbox
    finally:
        await sandboxes.release(sandbox)


async def steps_of(sandbox: Sandbox, code: str, *, seconds: float = _TIMEOUT) -> list[Output | ExecutionResult]:
    """Run code; all output and the result."""
    async with aclosing(sandbox.run(code, timeout=seconds)) as steps:
        return [step async for step in steps]


async def result_of(sandbox: Sandbox, code: str, *, seconds: float = _TIMEOUT) -> ExecutionResult:
    """Run code; its result."""
    return _result(await steps_of(sandbox, code, seconds=seconds))


async def command_result(sandbox: Sandbox, command: str, *, seconds: float = _TIMEOUT) -> ExecutionResult:
    """Run a shell command; its result."""
    async with aclosing(sandbox.run_command(command, timeout=seconds)) as steps:
        return _result([step async for step in steps])


def _result(steps: list[Output | ExecutionResult]) -> ExecutionResult:
    results = [step for step in steps if isinstance(step, ExecutionResult)]
    check(results == steps[-1:], f"there is one result, and it is last: {steps!r}")
    return results[0]


def printed(result: ExecutionResult) -> str:
    """The complete output of a run."""
    return "".join(piece.text for piece in result.output)


async def chunks(content: bytes, size: int = 1 << 16) -> AsyncIterator[bytes]:
    """Content in chunks."""
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def read(content: AsyncGenerator[bytes, None]) -> bytes:
    """The complete content."""
    async with aclosing(content) as arriving:
        return b"".join([chunk async for chunk in arriving])


def tar(files: dict[str, bytes]) -> bytes:
    """A tar archive."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return written.getvalue()


async def raises_lost(work: Awaitable[Any]) -> None:
    """Assert that it raises `SandboxLost`."""
    try:
        answer = await work
    except SandboxLost:
        return
    raise AssertionError(f"expected SandboxLost, got {answer!r}")


async def raises_refused(work: Awaitable[Any]) -> SandboxRefused:
    """Assert that it raises `SandboxRefused`."""
    try:
        answer = await work
    except SandboxRefused as refused:
        return refused
    raise AssertionError(f"expected SandboxRefused, got {answer!r}")
