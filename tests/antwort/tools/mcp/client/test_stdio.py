"""Programs in a jail, with a real MCP server on standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from pathlib import Path

import pytest
from waiting import wait_until_async

from antwort.sandbox.host.cgroups import CgroupsUnavailable, detect
from antwort.sandbox.host.process import descendants
from antwort.tools.mcp.client import McpFault, SessionLimits, StdioTarget

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="the jail needs Linux")]
CGROUPS = Path("/sys/fs/cgroup")
PROGRAM = Path(__file__).parents[4] / "support" / "mcp_stdio_program.py"


@pytest.fixture
def program(tmp_path):
    """A target with a folder of its own."""

    def target(**more):
        folders = {sys.prefix, sys.base_prefix, str(PROGRAM.parent), *more.pop("folders", ())}
        return StdioTarget(command=(sys.executable, str(PROGRAM)), folders=tuple(sorted(folders)), **more)

    return target


async def test_tools_are_listed_and_called(client, program, tmp_path):
    (tmp_path / "note.txt").write_text("remember the tea", encoding="utf-8")
    tmp_path.chmod(0o755)  # a server that is root runs the program as another user
    target = program(folders=[str(tmp_path)])
    listing = await client.list_tools("t", target)

    assert [tool.name for tool in listing.tools][:2] == ["read", "write"]
    note = str(tmp_path / "note.txt")
    assert (await client.call_tool("t", target, "read", {"path": note})).text == "remember the tea"


async def test_the_jail(client, program, tmp_path, local, crm):
    (tmp_path / "secret").write_text("hunter2", encoding="utf-8")
    writable = tmp_path / "writable"
    writable.mkdir()
    writable.chmod(0o777)
    target = program(environment=(("TOKEN", "t"),), writable_folders=(str(writable),))

    async def call(name: str, **arguments):
        return await client.call_tool("t", target, name, arguments)

    reported = (await call("environment")).text.split()
    assert "TOKEN=t" in reported
    assert not [one for one in reported if one.startswith(("ANTWORT", "USER", "PYTEST"))]
    assert "uid=0" not in reported
    assert (await call("read", path=str(tmp_path / "secret"))).error_content
    assert (await call("read", path="/etc/shadow")).error_content
    assert (await call("write", path=str(PROGRAM), text="")).error_content
    assert (await call("write", path="/usr/x", text="")).error_content
    assert (await call("write", path=str(writable / "made"), text="hello")).text == "5"
    assert (writable / "made").read_text(encoding="utf-8") == "hello"
    port = int(crm.url.rpartition(":")[2].partition("/")[0])
    assert (await call("connect", port=port)).error_content


async def test_no_command_line_shows_a_secret(client, program):
    token = secrets.token_hex(16)
    target = program(environment=(("TOKEN", token),))
    assert f"TOKEN={token}" in (await client.call_tool("t", target, "environment", {})).text
    shown = command_lines()

    assert any(PROGRAM.name in line for line in shown)
    assert not any(token in line for line in shown)


def command_lines() -> list[str]:
    return [read(path) for path in Path("/proc").glob("[0-9]*/cmdline")]


def read(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


async def test_a_program_has_the_network_if_the_configuration_says_so(client, program, crm):
    port = int(crm.url.rpartition(":")[2].partition("/")[0])
    result = await client.call_tool("t", program(has_network=True), "connect", {"port": port})

    assert result.text == "connected"


async def test_a_program_that_ends_fails_its_call_and_is_started_again(client, program):
    target = program()
    with pytest.raises(McpFault) as caught:
        await client.call_tool("t", target, "crash", {})

    assert caught.value.kind == "mcp_protocol_error"
    assert (await client.call_tool("t", target, "flood", {"size": 3})).text == "xxx"


async def test_a_program_that_needs_too_much_harms_only_itself(client, program):
    target, other = program(), program(max_memory=1 << 28, max_processes=40)

    async def call(target, name: str, **arguments):
        return await client.call_tool("t", target, name, arguments)

    assert (await call(target, "flood", size=3)).text == "xxx"
    count, reason = (await call(other, "fork")).text.split(": ")
    assert (0 < int(count) < 40, reason) == (True, "Resource temporarily unavailable")
    count, reason = (await call(target, "fork")).text.split(": ")
    assert 40 < int(count) < 128
    with contextlib.suppress(McpFault):  # where there is a cgroup, the kernel has ended it
        assert (await call(target, "grow", size=2 << 30)).error_content
    count, reason = (await call(program(environment=(("N", "1"),)), "fill")).text.split(": ")
    assert (256 <= int(count) <= 512, reason) == (True, "No space left on device")
    assert (await call(target, "flood", size=3)).text == "xxx"
    assert (await call(program(environment=(("N", "2"),)), "grow", size=1 << 20)).text == str(1 << 20)


async def test_a_start_that_is_cancelled_leaves_nothing_behind():
    from antwort.tools.mcp.client.stdio import stdio_transport  # noqa: PLC0415 - imports the SDK

    async def use() -> None:
        async with stdio_transport(StdioTarget(command=("cat",)), SessionLimits()):
            await asyncio.Event().wait()

    has_cgroups = False

    def cgroups() -> list[Path]:
        return [*CGROUPS.glob(f"antwort-{os.getpid()}-*"), *CGROUPS.glob(f"*/antwort-{os.getpid()}-*")]

    def left() -> list[object]:
        return [*cgroups(), *descendants(os.getpid())[1:], len([*Path("/proc/self/fd").iterdir()])]

    with contextlib.suppress(CgroupsUnavailable):
        has_cgroups = not detect().must_move
    before = left()
    for steps in (0, 10, 100, 1000):
        starting = asyncio.create_task(use())
        for _ in range(20_000):
            if cgroups() if has_cgroups else left()[len(before) :]:
                break
            await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        await wait_until_async(lambda: left() == before)


async def test_a_message_that_is_too_long_ends_the_session(open_client, program):
    async with open_client(max_bytes=100_000) as client:
        target = program()
        with pytest.raises(McpFault):
            await client.call_tool("t", target, "flood", {"size": 1_000_000})
        assert (await client.call_tool("t", target, "flood", {"size": 3})).text == "xxx"


async def test_two_tenants_have_two_programs_that_end_with_the_client(open_client, program):
    async with open_client() as client:
        for tenant in ("a", "b"):
            await client.list_tools(tenant, program())
        assert len(children()) == 2
    await wait_until_async(lambda: not children())


def children() -> list[str]:
    """The programs that run below this process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((path.parent / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except OSError:
            continue
        if PROGRAM.name in text and parent == os.getpid():
            found.append(text)
    return found


async def test_a_program_that_does_not_exist(client):
    with pytest.raises(McpFault) as caught:
        await client.list_tools("t", StdioTarget(command=("/usr/bin/no-such-program",)))
    assert (caught.value.kind, caught.value.code) == ("mcp_protocol_error", -32000)

    with pytest.raises(McpFault, match="could not be started"):
        await client.list_tools("t", StdioTarget(command=("x",), folders=("/no/such/folder",)))
