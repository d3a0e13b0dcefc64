from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from fake_llama_server import FAKE_SERVER_COMMAND, LlamaReply
from waiting import wait_until, wait_until_async

from antwort.engine.ports import ModelFault
from antwort.models import RetryingModel
from antwort.models.circuit_breaker import CircuitBreakers, CircuitOpen
from antwort.models.embedded import Embedded, Supervisor
from antwort.models.retry import RetryPolicy
from antwort.testing.model import collect, fold, make_request

pytestmark = pytest.mark.anyio


@pytest.fixture
async def supervisor_and_script(tmp_path):
    script = LlamaReply(text="Hello").write(tmp_path / "reply.json")
    supervisor = Supervisor(script, command=FAKE_SERVER_COMMAND, threads=1)
    try:
        yield supervisor, script
    finally:
        await supervisor.aclose()


async def test_the_process_starts_with_the_first_use_and_only_once(supervisor_and_script):
    supervisor, _ = supervisor_and_script
    assert supervisor.pid is None

    clients = await asyncio.gather(*(supervisor.upstream() for _ in range(5)))
    assert supervisor.pid is not None
    assert len(set(map(id, clients))) == 1


async def test_a_dead_process_is_restarted(supervisor_and_script, instrumentation):
    supervisor, _ = supervisor_and_script
    model = RetryingModel(Embedded(supervisor), instrumentation=instrumentation)
    await collect(model, make_request())
    first = supervisor.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)

    assert fold(await collect(model, make_request())).text == "Hello"
    assert supervisor.pid not in (None, first)


async def test_process_death_during_an_answer_is_a_fault_and_the_next_one_succeeds(
    supervisor_and_script, instrumentation
):
    supervisor, script = supervisor_and_script
    model = RetryingModel(Embedded(supervisor), instrumentation=instrumentation)
    LlamaReply(text="An incomplete answer", exits=True).write(script)
    with pytest.raises(ModelFault, match="ended before it was complete"):
        await collect(model, make_request())
    LlamaReply(text="Complete").write(script)

    assert fold(await collect(model, make_request())).text == "Complete"


async def test_an_open_circuit_breaker_does_not_start_the_process_again(supervisor_and_script, instrumentation):
    supervisor, script = supervisor_and_script
    options = {"policy": RetryPolicy(attempts=1), "breakers": CircuitBreakers(threshold=2)}
    model = RetryingModel(Embedded(supervisor), instrumentation=instrumentation, **options)
    LlamaReply(text="An incomplete answer", exits=True).write(script)
    for _ in range(2):
        with pytest.raises(ModelFault, match=r"ended before it was complete|cannot be reached"):
            await collect(model, make_request())
    last = supervisor.pid

    with pytest.raises(CircuitOpen):
        await collect(model, make_request())
    assert supervisor.pid == last


async def test_aclose_stops_the_process_for_good(supervisor_and_script):
    supervisor, _ = supervisor_and_script
    await supervisor.upstream()
    pid = supervisor.pid
    await supervisor.aclose()

    assert not is_alive(pid)
    with pytest.raises(ModelFault, match="stopping"):
        await supervisor.upstream()


async def test_aclose_does_not_wait_for_a_loading_process(tmp_path):
    started = tmp_path / "started"
    slow = (sys.executable, "-c", f"import time; open({str(started)!r}, 'w').close(); time.sleep(600)")
    supervisor = Supervisor(tmp_path / "weights", command=slow)
    starting = asyncio.create_task(supervisor.upstream())
    await wait_until_async(started.exists)
    pid = supervisor.pid
    await supervisor.aclose()

    with pytest.raises(ModelFault):
        await starting
    assert not is_alive(pid)


@pytest.mark.parametrize("code", ["raise SystemExit('no such weights')", "print('{}', flush=True)"])
async def test_a_failed_start_is_a_fault_and_can_be_retried(tmp_path, code):
    supervisor = Supervisor(tmp_path / "weights", command=(sys.executable, "-c", code))
    for _ in range(2):
        with pytest.raises(ModelFault, match="did not start"):
            await supervisor.upstream()
    await supervisor.aclose()


async def test_a_missing_program_is_a_fault(tmp_path):
    supervisor = Supervisor(tmp_path / "weights", command=(str(tmp_path / "none"),))
    with pytest.raises(ModelFault, match="did not start"):
        await supervisor.upstream()


async def test_large_stderr_output_does_not_block_the_process(tmp_path):
    script = LlamaReply(text="Hello").write(tmp_path / "reply.json")
    verbose = "import sys, runpy; sys.stderr.write('x' * 5_000_000); runpy.run_path(sys.argv[1], run_name='__main__')"
    supervisor = Supervisor(script, command=(sys.executable, "-c", verbose, FAKE_SERVER_COMMAND[1]))
    model = Embedded(supervisor)

    assert fold(await collect(model, make_request())).text == "Hello"
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


def test_the_process_exits_when_the_server_is_killed(tmp_path):
    script = LlamaReply().write(tmp_path / "reply.json")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, script, *FAKE_SERVER_COMMAND], stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        pid = next(int(line) for line in parent.stdout if line.strip().isdigit())
        assert is_alive(pid)
        parent.kill()
    wait_until(lambda: not is_alive(pid))


def is_alive(pid: int | None) -> bool:
    assert pid is not None
    with suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return False
