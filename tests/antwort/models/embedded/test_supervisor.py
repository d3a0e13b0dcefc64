from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from fake_llama_server import COMMAND, Reply
from waiting import wait_until, wait_until_async

from antwort.engine.ports import ModelFault
from antwort.models import Resilient
from antwort.models.embedded import Embedded, Supervisor
from antwort.testing.model import asking, collect, fold

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stage(tmp_path):
    script = Reply(text="Hello").write(tmp_path / "reply.json")
    supervisor = Supervisor(script, command=COMMAND, threads=1)
    try:
        yield supervisor, script
    finally:
        await supervisor.aclose()


async def test_nothing_runs_before_the_first_use_and_one_process_serves_all(stage):
    supervisor, _ = stage
    assert supervisor.pid is None

    ways = await asyncio.gather(*(supervisor.upstream() for _ in range(5)))
    assert supervisor.pid is not None
    assert len(set(map(id, ways))) == 1


async def test_a_process_that_died_is_started_again(stage):
    supervisor, _ = stage
    model = Resilient(Embedded(supervisor))
    await collect(model, asking())
    first = supervisor.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)

    assert fold(await collect(model, asking())).text == "Hello"
    assert supervisor.pid not in (None, first)


async def test_a_process_that_dies_in_the_middle_of_an_answer_is_a_fault_and_the_next_answer_is_whole(stage):
    supervisor, script = stage
    model = Resilient(Embedded(supervisor))
    Reply(text="So far and no further", die=True).write(script)
    with pytest.raises(ModelFault, match="ended before it was whole"):
        await collect(model, asking())
    Reply(text="Whole").write(script)

    assert fold(await collect(model, asking())).text == "Whole"


async def test_closing_ends_the_process_and_starts_none_again(stage):
    supervisor, _ = stage
    await supervisor.upstream()
    pid = supervisor.pid
    await supervisor.aclose()

    assert not alive(pid)
    with pytest.raises(ModelFault, match="stopping"):
        await supervisor.upstream()


async def test_closing_does_not_wait_for_one_that_is_still_loading(tmp_path):
    started = tmp_path / "started"
    slow = (sys.executable, "-c", f"import time; open({str(started)!r}, 'w').close(); time.sleep(600)")
    supervisor = Supervisor(tmp_path / "weights", command=slow)
    asked = asyncio.create_task(supervisor.upstream())
    await wait_until_async(started.exists)
    pid = supervisor.pid
    await supervisor.aclose()

    with pytest.raises(ModelFault):
        await asked
    assert not alive(pid)


@pytest.mark.parametrize("code", ["raise SystemExit('no such weights')", "print('{}', flush=True)"])
async def test_one_that_cannot_start_is_a_fault_and_can_be_tried_again(tmp_path, code):
    supervisor = Supervisor(tmp_path / "weights", command=(sys.executable, "-c", code))
    for _ in range(2):
        with pytest.raises(ModelFault, match="did not start"):
            await supervisor.upstream()
    await supervisor.aclose()


async def test_a_program_that_is_not_there_is_a_fault(tmp_path):
    supervisor = Supervisor(tmp_path / "weights", command=(str(tmp_path / "none"),))
    with pytest.raises(ModelFault, match="did not start"):
        await supervisor.upstream()


async def test_the_process_prints_as_much_as_it_likes(tmp_path):
    script = Reply(text="Hello").write(tmp_path / "reply.json")
    loud = "import sys, runpy; sys.stderr.write('x' * 5_000_000); runpy.run_path(sys.argv[1], run_name='__main__')"
    supervisor = Supervisor(script, command=(sys.executable, "-c", loud, COMMAND[1]))
    model = Embedded(supervisor)

    assert fold(await collect(model, asking())).text == "Hello"
    await model.aclose()


PARENT = """
import asyncio, sys
from pathlib import Path
from antwort.models.embedded import Supervisor
async def main():
    supervisor = Supervisor(Path(sys.argv[1]), command=sys.argv[2:])
    await supervisor.upstream()
    print(supervisor.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_when_the_server_is_killed_its_model_is_gone_too(tmp_path):
    script = Reply().write(tmp_path / "reply.json")
    parent = subprocess.Popen([sys.executable, "-c", PARENT, script, *COMMAND], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        pid = next(int(line) for line in parent.stdout if line.strip().isdigit())
        assert alive(pid)
        parent.kill()
    wait_until(lambda: not alive(pid))


def alive(pid: int | None) -> bool:
    assert pid is not None
    with suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return False
