"""What every `Sandboxes` must do, as tests that any implementation can run.

pytest with anyio's plugin collects them from a subclass; the place under test is the
fixture `sandboxes`:

    import pytest
    from antwort.testing.sandbox_backend import SandboxesConformance

    @pytest.fixture(scope="module")
    async def sandboxes():
        place = MySandboxes()
        yield place
        await place.aclose()

    @pytest.mark.anyio
    class TestMySandboxes(SandboxesConformance):
        pass

A place has the memory limit `1g`, and room for five at once. The assertions are plain
`AssertionError`s with both sides in the message.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from antwort.containers.sandboxes.port import (
    ExecutionResult,
    Output,
    Sandbox,
    Sandboxes,
    SandboxLost,
    SandboxRefused,
)

_PATIENCE = 60.0
_ENOUGH = 600 << 20


class SandboxesConformance:
    """Subclass it, and give it the fixture `sandboxes`."""

    # ── running code ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_what_is_printed_comes_and_the_last_value_is_echoed(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            steps = await ran(sandbox, "import sys\nprint('grüße 🎈')\nprint('oh', file=sys.stderr)\n6 * 7")
            outcome = _outcome(steps)
            equal(outcome.status, "ok")
            equal(outcome.echo, "42")
            equal(printed(outcome), "grüße 🎈\noh\n")
            equal([one.stream for one in outcome.output], ["stdout", "stderr"])
            live = "".join(step.text for step in steps if isinstance(step, Output))
            equal(live, "grüße 🎈\noh\n")
            equal(outcome.sandbox_alive, expected=True)

    async def test_output_comes_while_the_code_runs(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            run = sandbox.run("print('begun', flush=True)\nwhile True: pass", timeout=_PATIENCE)
            async with aclosing(run) as steps:
                first = await anext(steps)
                equal(first, Output("stdout", "begun\n"))
            outcome = await done(sandbox, "'still here'")  # closing the run has stopped the code
            equal(outcome.echo, "'still here'")

    async def test_variables_live_on(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            await done(sandbox, "x = 20")
            equal((await done(sandbox, "x + 1")).echo, "21")

    async def test_an_exception_is_an_outcome_with_its_traceback(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            outcome = await done(sandbox, "print('before')\n1 / 0")
            equal(outcome.status, "error")
            check("before" in printed(outcome), f"what was printed before is kept: {printed(outcome)!r}")
            check("ZeroDivisionError" in printed(outcome), f"the traceback is in the output: {printed(outcome)!r}")
            equal(outcome.sandbox_alive, expected=True)

    async def test_code_that_is_no_python_is_an_outcome_too(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            outcome = await done(sandbox, "def")
            equal(outcome.status, "error")
            check("SyntaxError" in printed(outcome), f"says what is wrong: {printed(outcome)!r}")

    async def test_a_run_past_its_time_ends_and_variables_survive_where_it_heeds_the_interrupt(
        self, sandboxes: Sandboxes
    ) -> None:
        async with acquired(sandboxes) as sandbox:
            await done(sandbox, "x = 1")
            outcome = await done(sandbox, "print('begun')\nwhile True: pass", seconds=1)
            equal(outcome.status, "timeout")
            check("begun" in printed(outcome), f"what was printed is kept: {printed(outcome)!r}")
            equal(outcome.sandbox_alive, expected=True)
            equal((await done(sandbox, "x")).echo, "1")

    async def test_a_run_can_be_interrupted(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            run = sandbox.run("print('begun', flush=True)\nwhile True: pass", timeout=_PATIENCE)
            async with aclosing(run) as steps:
                await anext(steps)
                await sandbox.interrupt()
                rest = [step async for step in steps]
            equal(_outcome(rest).status, "interrupted")

    async def test_too_much_memory_ends_it_and_says_so(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            outcome = await done(sandbox, "x = [bytearray(64 << 20) for _ in range(64)]")
            if outcome.status == "error":  # where memory is limited by the process, Python itself is told
                check("MemoryError" in printed(outcome), f"says why: {printed(outcome)!r}")
                return
            equal((outcome.status, outcome.sandbox_alive), ("oom", False))
            await loses(done(sandbox, "1"))

    async def test_an_interpreter_that_ends_is_lost(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            outcome = await done(sandbox, "import os\nprint('last words', flush=True)\nos._exit(3)")
            equal((outcome.status, outcome.sandbox_alive), ("ended", False))
            check("last words" in printed(outcome), f"what was printed is kept: {printed(outcome)!r}")
            check(bool(outcome.reason), "says why it ended")
            await loses(done(sandbox, "1"))
            await loses(sandbox.list_files())

    async def test_figures_come_as_pictures(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            outcome = await done(sandbox, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
            equal([(one.mime, one.data[:4]) for one in outcome.figures], [("image/png", b"\x89PNG")])

    async def test_very_much_output_is_cut_and_never_an_error(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            outcome = await done(sandbox, "for n in range(700_000): print(f'{n:099}')")
            equal(outcome.status, "ok")
            check(outcome.cut_bytes > 0, "70 MB of output are cut")
            check(printed(outcome).rstrip().endswith("699999"), "the end of it is kept")

    async def test_long_code_is_run(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            equal((await done(sandbox, f"x = '{'a' * 5_000_000}'\nlen(x)")).echo, "5000000")

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_files_go_in_and_out(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            content = bytes(range(256)) * 4096
            equal(await sandbox.write_file("a dir/grüße 🎈?#%.bin", pieces(content, 100_000)), len(content))
            outcome = await done(sandbox, "open('/mnt/data/a dir/grüße 🎈?#%.bin', 'rb').read()[:3]")
            equal(outcome.echo, repr(content[:3]))
            await done(sandbox, "open('made.txt', 'w').write('made')")
            listed = {one.path: one.size for one in await sandbox.list_files()}
            equal(listed, {"a dir/grüße 🎈?#%.bin": len(content), "made.txt": 4})
            equal(await read(sandbox.read_file("a dir/grüße 🎈?#%.bin")), content)
            equal(await sandbox.delete_file("made.txt"), expected=True)
            equal(await sandbox.delete_file("made.txt"), expected=False)
            equal([one.path for one in await sandbox.list_files()], ["a dir/grüße 🎈?#%.bin"])

    async def test_a_file_written_again_is_seen_to_be(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            await done(sandbox, "open('x', 'w').write('1')")
            before = await sandbox.list_files()
            await done(sandbox, "import time; time.sleep(0.05); open('x', 'w').write('2')")
            check(await sandbox.list_files() != before, "same size, another time")

    async def test_a_file_is_replaced(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            await sandbox.write_file("x", pieces(b"a longer text"))
            await sandbox.write_file("x", pieces(b"short"))
            equal(await read(sandbox.read_file("x")), b"short")

    async def test_an_empty_file_is_a_file(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            equal(await sandbox.write_file("empty", pieces(b"")), 0)
            equal(await read(sandbox.read_file("empty")), b"")

    async def test_paths_that_leave_are_refused(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            for path in ("../x", "/etc/x", "a/../../x", "", ".", "a//b", "a\nb"):
                equal((await refuses(sandbox.write_file(path, pieces(b"x")))).why, "path")
            equal(await sandbox.list_files(), [])

    async def test_links_are_neither_listed_nor_followed(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            await done(sandbox, "import os; os.symlink('/etc/passwd', 'x')")
            equal(await sandbox.list_files(), [])
            await refuses(read(sandbox.read_file("x")))

    async def test_a_file_that_is_not_there_is_missing(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            equal((await refuses(read(sandbox.read_file("nothing")))).why, "missing")

    async def test_no_room_is_refused_and_leaves_nothing(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            much = pieces(bytes(_ENOUGH), 1 << 20)
            equal((await refuses(sandbox.write_file("much", much))).why, "size")
            equal(await sandbox.list_files(), [])
            equal(await sandbox.write_file("little", pieces(b"x")), 1)

    async def test_a_writer_that_gives_up_leaves_nothing(self, sandboxes: Sandboxes) -> None:
        async def half() -> AsyncIterator[bytes]:
            yield b"half of it"
            raise _GivenUp

        async with acquired(sandboxes) as sandbox:
            try:
                await sandbox.write_file("x", half())
            except _GivenUp:
                pass
            else:
                raise AssertionError("what the content raises goes through")
            async with asyncio.timeout(_PATIENCE):
                while await sandbox.list_files():  # noqa: ASYNC110 - nothing says when the other side has noticed
                    await asyncio.sleep(0.01)

    async def test_archives_go_in_and_out(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            await sandbox.unpack(pieces(tar({"a/b.txt": b"one", "c.txt": b"two"}), 512))
            equal({one.path for one in await sandbox.list_files()}, {"a/b.txt", "c.txt"})
            packed = await read(sandbox.pack())
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                files = {one.name.removeprefix("./"): archive.extractfile(one) for one in archive if one.isfile()}
                equal({name: file.read() for name, file in files.items() if file}, {"a/b.txt": b"one", "c.txt": b"two"})

    async def test_an_archive_that_leaves_is_refused(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            await refuses(sandbox.unpack(pieces(tar({"../x": b"one"}))))
            await refuses(sandbox.unpack(pieces(b"no archive at all" * 100)))

    # ── getting one and letting it go ────────────────────────────────────────────────────────────────────────────────

    async def test_several_are_apart(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as one, acquired(sandboxes) as other:
            await done(one, "x = 1; open('x', 'w').write('x')")
            equal((await done(other, "x")).status, "error")
            equal(await other.list_files(), [])
            check(one.id != other.id, "their ids differ")

    async def test_several_can_be_had_at_once(self, sandboxes: Sandboxes) -> None:
        wanted = [sandboxes.acquire(tenant="t", memory_limit="1g", timeout=_PATIENCE) for _ in range(5)]
        held = await asyncio.gather(*wanted)
        try:
            echoes = await asyncio.gather(*(done(one, f"{number} * 2") for number, one in enumerate(held)))
            equal([one.echo for one in echoes], ["0", "2", "4", "6", "8"])
        finally:
            await asyncio.gather(*map(sandboxes.release, held))

    async def test_a_memory_limit_that_nobody_knows_is_refused(self, sandboxes: Sandboxes) -> None:
        refused = await refuses(sandboxes.acquire(tenant="t", memory_limit="3g", timeout=_PATIENCE))
        equal(refused.why, "tier")

    async def test_one_that_was_released_is_gone(self, sandboxes: Sandboxes) -> None:
        async with acquired(sandboxes) as sandbox:
            await done(sandbox, "x = 1")
        await loses(done(sandbox, "x"))
        await loses(sandbox.list_files())
        await loses(read(sandbox.read_file("x")))
        await sandboxes.release(sandbox)


# ── what the tests speak in ──────────────────────────────────────────────────────────────────────────────────────────


class _GivenUp(Exception):
    """Whoever writes a file does not go on."""


@asynccontextmanager
async def acquired(sandboxes: Sandboxes) -> AsyncGenerator[Sandbox]:
    """A sandbox for a while."""
    sandbox = await sandboxes.acquire(tenant="t", memory_limit="1g", timeout=_PATIENCE)
    try:
        yield sandbox
    finally:
        await sandboxes.release(sandbox)


async def ran(sandbox: Sandbox, code: str, *, seconds: float = _PATIENCE) -> list[Output | ExecutionResult]:
    """Everything that came of a run."""
    async with aclosing(sandbox.run(code, timeout=seconds)) as steps:
        return [step async for step in steps]


async def done(sandbox: Sandbox, code: str, *, seconds: float = _PATIENCE) -> ExecutionResult:
    """What a run came to."""
    return _outcome(await ran(sandbox, code, seconds=seconds))


def _outcome(steps: list[Output | ExecutionResult]) -> ExecutionResult:
    outcomes = [step for step in steps if isinstance(step, ExecutionResult)]
    check(outcomes == steps[-1:], f"there is one outcome, and it comes last: {steps!r}")
    return outcomes[0]


def printed(outcome: ExecutionResult) -> str:
    """All that a run printed."""
    return "".join(one.text for one in outcome.output)


async def pieces(content: bytes, size: int = 1 << 16) -> AsyncIterator[bytes]:
    """Content in pieces."""
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def read(content: AsyncGenerator[bytes, None]) -> bytes:
    """The content whole."""
    async with aclosing(content) as arriving:
        return b"".join([piece async for piece in arriving])


def tar(files: dict[str, bytes]) -> bytes:
    """An archive."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return written.getvalue()


async def loses(work: Awaitable[Any]) -> None:
    """It raises `SandboxLost`."""
    try:
        answer = await work
    except SandboxLost:
        return
    raise AssertionError(f"the sandbox is gone, and yet it answers {answer!r}")


async def refuses(work: Awaitable[Any]) -> SandboxRefused:
    """It raises `SandboxRefused`."""
    try:
        answer = await work
    except SandboxRefused as refused:
        return refused
    raise AssertionError(f"it should have been refused, and answers {answer!r}")


def check(condition: bool, message: str) -> None:  # noqa: FBT001 - there is nothing else that it could be
    """Assert, also under `python -O`."""
    if not condition:
        raise AssertionError(message)


def equal(actual: object, expected: object) -> None:
    """Both are the same."""
    check(actual == expected, f"\n  got      {actual!r}\n  expected {expected!r}")
