"""Whatever is killed is dead as a whole, when the call returns, and nothing outlives us."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
import uuid

import pytest

from pytest_core_rollouts.embedded.sandbox import Isolation, Sandbox
from tests.support.sandboxes import folders, new_sandbox, processes_with, run, text, wait_until_gone

STUBBORN = """
trap '' TERM INT HUP
(setsid nohup bash -c 'trap "" TERM; while :; do sleep 0.1; done' "$1" >/dev/null 2>&1 &)
python3 - "$1" <<'PY' &
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3):
            os.close(fd)
        time.sleep(1000)
time.sleep(1000)
PY
echo up
while :; do sleep 0.1; done
"""


def test_a_timeout_kills_everything(sandbox: Sandbox) -> None:
    token = uuid.uuid4().hex
    done = run(sandbox, STUBBORN, token, timeout=3)
    assert processes_with(token) == []
    assert (done.timed_out, done.killed, done.returncode, text(done)) == (True, "timeout", 137, "up\n")
    assert not done.limit_exceeded


def test_cancelling_kills_everything_before_it_raises(sandbox: Sandbox) -> None:
    token = uuid.uuid4().hex

    async def cancel() -> list[int]:
        up = asyncio.Event()
        argv = ["bash", "-c", STUBBORN, "script", token]
        running = asyncio.create_task(sandbox.run(argv, env={}, on_output=lambda chunk: up.set()))
        await up.wait()
        assert len(processes_with(token)) > 2
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return processes_with(token)

    assert asyncio.run(cancel()) == []


def test_sandboxes_end_with_their_event_loop(sandbox: Sandbox) -> None:
    token = uuid.uuid4().hex

    async def leave() -> None:
        up = asyncio.Event()
        argv = ["bash", "-c", STUBBORN, "script", token]
        task = asyncio.ensure_future(sandbox.run(argv, env={}, on_output=lambda chunk: up.set()))
        await up.wait()
        assert not task.done()

    asyncio.run(leave())
    assert processes_with(token) == []


def test_kill_from_another_thread_and_a_later_run_works(sandbox: Sandbox) -> None:
    token = uuid.uuid4().hex
    up = threading.Event()

    def kill() -> None:
        up.wait(30)
        sandbox.kill()
        sandbox.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    done = run(sandbox, STUBBORN, token, on_output=lambda chunk: up.set())
    killer.join()
    assert (done.killed, done.timed_out, processes_with(token)) == ("killed", False, [])
    assert text(run(sandbox, "echo again")) == "again\n"


def test_daemon_that_holds_the_pipe_does_not_delay_the_end(sandbox: Sandbox) -> None:
    token = uuid.uuid4().hex
    assert text(run(sandbox, "(setsid bash -c 'sleep 1000; :' $1 &); echo done", token)) == "done\n"
    assert run(sandbox, "exec >&- 2>&-; sleep 0.3; exit 5").returncode == 5
    assert processes_with(token) == []


def test_kill_during_the_start_leaves_nothing(isolation: Isolation) -> None:
    token = uuid.uuid4().hex
    moments = random.Random(2)

    async def one(after: float) -> None:
        with new_sandbox(isolation) as sandbox:
            task = asyncio.create_task(sandbox.run(["bash", "-c", STUBBORN, "script", token], env={}))
            await asyncio.sleep(after)
            if moments.random() < 0.5:
                sandbox.kill()
                await task
            else:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

    async def many() -> None:
        for _ in range(20):
            await asyncio.gather(*(one(moments.uniform(0, 0.04)) for _ in range(5)))

    asyncio.run(many())
    assert processes_with(token) == []
    assert folders(isolation) == []


def test_destroy_ends_the_run_and_refuses_another(isolation: Isolation) -> None:
    token = uuid.uuid4().hex

    async def destroy() -> None:
        sandbox = Sandbox(isolation, isolation.sessions / "destroyed")
        up = asyncio.Event()
        argv = ["bash", "-c", STUBBORN, "script", token]
        task = asyncio.create_task(sandbox.run(argv, env={}, on_output=lambda chunk: up.set()))
        await up.wait()
        await asyncio.to_thread(sandbox.destroy)
        assert processes_with(token) == []
        assert (await task).killed == "killed"
        with pytest.raises(RuntimeError, match="destroyed"):
            await sandbox.run(["true"], env={})
        sandbox.destroy()

    asyncio.run(destroy())
    assert folders(isolation) == []


PARENT = """
import asyncio, sys
from pathlib import Path
from pytest_core_rollouts.embedded.sandbox import Isolation, Sandbox

isolation = Isolation.probe(scratch=Path(sys.argv[1]))

async def one(number):
    sandbox = Sandbox(isolation, isolation.sessions / str(number))
    script = 'echo up; setsid nohup bash -c "sleep 1000; :" $0 & trap "" TERM; sleep 0.0$((RANDOM % 9))'
    while True:
        done = await sandbox.run(["bash", "-c", script, sys.argv[2]], env={})
        print(done.output.decode(), end="", flush=True)

async def main():
    await asyncio.gather(*(one(number) for number in range(4)))

asyncio.run(main())
"""


def test_nothing_survives_sigkill_of_the_parent(isolation: Isolation) -> None:
    token = uuid.uuid4().hex
    moments = random.Random(3)
    for number in range(5):
        scratch = isolation.folder / f"scratch-{number}"
        scratch.mkdir()
        argv = [sys.executable, "-c", PARENT, str(scratch), token]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"up\n"
            time.sleep(moments.uniform(0.0, 0.1))
            parent.kill()
    assert wait_until_gone(token, 5) == []


ABANDONING = """
import os, subprocess, sys
from pathlib import Path
from pytest_core_rollouts.embedded.sandbox import Isolation

isolation = Isolation.probe(scratch=Path(sys.argv[1]))
argv = [*isolation.drop, "sh", "-c", "while :; do sleep 0.1; done", isolation.token, sys.argv[2]]
subprocess.Popen(argv, start_new_session=True, stdout=subprocess.DEVNULL)
print("up", flush=True)
os.kill(os.getpid(), 9)
"""


def test_guard_kills_a_sandbox_that_survived_its_parent(isolation: Isolation) -> None:
    token = uuid.uuid4().hex
    scratch = isolation.folder / "abandoned"
    scratch.mkdir()
    done = subprocess.run([sys.executable, "-c", ABANDONING, str(scratch), token], stdout=subprocess.PIPE)
    assert done.stdout == b"up\n"
    assert wait_until_gone(token, 5) == []
