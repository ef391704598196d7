"""Running commands: environment, input, output, limits; and that whatever is killed is dead as a whole."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_core_rollouts.embedded.sandbox import Isolation, Limits, Sandbox, SandboxFailed

from .sandboxes import folders, new_sandbox, processes_with, run, text, wait_until_gone

MIB = 1 << 20


@pytest.fixture(scope="module")
def isolation() -> Iterator[Isolation]:
    isolation = Isolation.probe()
    yield isolation
    isolation.close()
    assert not isolation.folder.exists()


@pytest.fixture
def sandbox(isolation: Isolation) -> Iterator[Sandbox]:
    with new_sandbox(isolation) as sandbox:
        yield sandbox


# Running


def test_a_command_runs_in_the_workspace_with_its_own_environment(sandbox: Sandbox) -> None:
    done = run(sandbox, 'pwd; id -un; echo "$HOME $TASK"; python3 -c "print(40 + 2)"', env={"TASK": "a b"})
    assert (done.returncode, text(done)) == (0, "/workspace\nagent\n/home/agent a b\n42\n")
    assert (done.truncated, done.timed_out, done.killed) == (False, False, None)


def test_exit_statuses_arrive(sandbox: Sandbox) -> None:
    assert run(sandbox, "exit 7").returncode == 7
    assert run(sandbox, "kill -TERM $$").returncode == 128 + signal.SIGTERM
    missing = asyncio.run(sandbox.run(["/no/such/program"], env={}))
    assert missing.returncode == 127
    assert "/no/such/program" in text(missing)


def test_stdout_and_stderr_come_in_order_and_stdin_is_passed_on_whole(sandbox: Sandbox) -> None:
    assert text(run(sandbox, "echo 1; echo 2 >&2; echo 3; cat")) == "1\n2\n3\n"
    assert text(run(sandbox, "cat", stdin=b"")) == ""
    assert text(run(sandbox, "read a; cat /dev/stdin", stdin=b"one\ntwo")) == "two"
    data = random.Random(1).randbytes(3 * MIB)
    done = run(sandbox, "cat", stdin=data, output_limit=4 * MIB)
    assert done.output == data


def test_stdin_that_nobody_reads_does_no_harm(sandbox: Sandbox) -> None:
    assert run(sandbox, "exec <&-; exit 3", stdin=b"x" * MIB).returncode == 3


def test_files_stay_from_run_to_run_and_temporary_ones_do_not(sandbox: Sandbox) -> None:
    run(sandbox, "echo kept > file; echo kept > ~/file; echo gone > /tmp/file")
    assert text(run(sandbox, "cat file ~/file; ls /tmp")) == "kept\nkept\n"


def test_output_is_bounded_in_memory_and_all_of_it_is_heard(sandbox: Sandbox) -> None:
    heard: list[int] = []
    done = run(
        sandbox, "head -c 30000000 /dev/zero", output_limit=1000, on_output=lambda chunk: heard.append(len(chunk))
    )
    assert (len(done.output), done.truncated, sum(heard)) == (1000, True, 30_000_000)
    assert max(heard) <= 1 << 16


def test_what_on_output_raises_ends_the_run_and_is_raised(sandbox: Sandbox) -> None:
    def refuse(chunk: bytes) -> None:
        raise LookupError("not this")

    token = uuid.uuid4().hex
    with pytest.raises(LookupError, match="not this"):
        run(sandbox, "echo x; sleep 1000", token, on_output=refuse)
    assert processes_with(token) == []


def test_a_sandbox_that_cannot_start_says_why(isolation: Isolation, sandbox: Sandbox) -> None:
    with pytest.raises(SandboxFailed, match=r"did not start: .*no-such-place"):
        run(sandbox, "true", binds=[(Path("/no-such-place"), "/opt/x")])


def test_what_is_no_environment_is_refused(sandbox: Sandbox) -> None:
    for env in ({"A=B": "x"}, {"": "x"}, {"A": "x\0y"}):
        with pytest.raises(ValueError, match="not an environment variable"):
            run(sandbox, "true", env=env)


def test_a_host_path_can_be_shown_read_only(sandbox: Sandbox, isolation: Isolation) -> None:
    shown = isolation.folder / "shown"
    shown.mkdir(mode=0o755)
    (shown / "file").write_text("here")
    done = run(sandbox, "cat /opt/x/file; touch /opt/x/y", binds=[(shown, "/opt/x")])
    assert text(done).startswith("here")
    assert "Read-only file system" in text(done)


def test_many_at_once(isolation: Isolation) -> None:
    async def one(number: int) -> bytes:
        with new_sandbox(isolation) as sandbox:
            return (await sandbox.run(["bash", "-c", f"echo {number}"], env={})).output

    async def all_of_them() -> list[bytes]:
        return list(await asyncio.gather(*(one(number) for number in range(60))))

    assert asyncio.run(all_of_them()) == [f"{number}\n".encode() for number in range(60)]


# Ending

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
    started = time.monotonic()
    done = run(sandbox, STUBBORN, token, timeout=0.5)
    assert processes_with(token) == []
    assert (done.timed_out, done.killed, done.returncode, text(done)) == (True, "timeout", 137, "up\n")
    assert time.monotonic() - started < 5


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


def test_an_event_loop_that_ends_takes_its_sandboxes_with_it(sandbox: Sandbox) -> None:
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


def test_a_daemon_that_holds_the_pipe_and_a_closed_stdout_hang_nothing(sandbox: Sandbox) -> None:
    token = uuid.uuid4().hex
    started = time.monotonic()
    assert text(run(sandbox, "(setsid bash -c 'sleep 1000; :' $1 &); echo done", token)) == "done\n"
    assert run(sandbox, "exec >&- 2>&-; sleep 0.3; exit 5").returncode == 5
    assert time.monotonic() - started < 5
    assert processes_with(token) == []


def test_killed_at_any_moment_of_its_start_nothing_is_left(isolation: Isolation) -> None:
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
        for _ in range(30):
            await asyncio.gather(*(one(moments.uniform(0, 0.04)) for _ in range(5)))

    asyncio.run(many())
    assert processes_with(token) == []
    assert folders(isolation) == []


def test_destroying_a_sandbox_ends_its_run_and_forbids_more(isolation: Isolation) -> None:
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


def test_nothing_survives_a_kill_9_of_the_parent(isolation: Isolation) -> None:
    token = uuid.uuid4().hex
    moments = random.Random(3)
    for number in range(8):
        scratch = isolation.folder / f"scratch-{number}"
        scratch.mkdir()
        argv = [sys.executable, "-c", PARENT, str(scratch), token]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"up\n"
            time.sleep(moments.uniform(0.0, 0.1))
            parent.kill()
    assert wait_until_gone(token, 5) == []


# Limits


def test_a_file_may_not_outgrow_its_limit(sandbox: Sandbox) -> None:
    done = run(sandbox, "head -c 2000000 /dev/zero > big; stat -c %s big", limits=Limits(file_size=MIB))
    assert text(done).splitlines()[-1] == str(MIB)


def test_memory_of_one_process_is_bounded(sandbox: Sandbox) -> None:
    done = run(sandbox, "python3 -c 'bytearray(3 << 30)'", limits=Limits(address_space=1 << 30))
    assert "MemoryError" in text(done)


def test_memory_of_many_processes_is_bounded(sandbox: Sandbox) -> None:
    script = "for i in 1 2 3 4; do python3 -c 'import time; x = b\"x\" * (60 << 20); time.sleep(100)' & done; wait"
    done = run(sandbox, script, limits=Limits(memory=150 * MIB))
    assert done.killed == f"memory: more than {150 * MIB} bytes used"


def test_numbers_of_processes_are_bounded(sandbox: Sandbox) -> None:
    script = """if True:
        import os, time
        started = 0
        try:
            while os.fork():
                started += 1
            time.sleep(100)
        except BlockingIOError:
            print(started)
    """
    done = asyncio.run(sandbox.run(["python3", "-c", script], env={}, limits=Limits(processes=40), timeout=20))
    assert 30 < int(text(done)) < 40


def test_a_fork_bomb_ends_with_its_sandbox(sandbox: Sandbox) -> None:
    token = uuid.uuid4().hex
    done = run(sandbox, "x() { x & x; }; x 2>/dev/null", token, limits=Limits(processes=100), timeout=1)
    assert processes_with(token) == []
    assert done.timed_out


def test_limits_on_processes_hold_for_each_sandbox_alone(isolation: Isolation) -> None:
    async def one() -> int:
        with new_sandbox(isolation) as sandbox:
            script = "for i in $(seq 20); do sleep 1 & done; wait"
            done = await sandbox.run(["bash", "-c", script], env={}, limits=Limits(processes=30))
            return len(done.output)

    async def several() -> list[int]:
        return list(await asyncio.gather(*(one() for _ in range(4))))

    assert asyncio.run(several()) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("for i in 1 2 3 4 5 6; do head -c 20M /dev/zero > big$i; done; sleep 100", id="written"),
        pytest.param("for i in 1 2 3 4 5 6; do fallocate -l 20M ~/big$i; done; sleep 100", id="allocated"),
        pytest.param("mkdir -m 700 d; cd d; head -c 100M /dev/zero > big; chmod 0 .; sleep 100", id="unreadable"),
        pytest.param(
            "for i in 1 2 3 4 5 6; do exec {fd}> big$i; rm big$i; head -c 20M /dev/zero >&$fd; done; sleep 100",
            id="deleted",
        ),
    ],
)
def test_the_disk_is_watched(sandbox: Sandbox, script: str) -> None:
    done = run(sandbox, script, limits=Limits(disk=64 * MIB))
    assert done.killed == f"disk: more than {64 * MIB} bytes used"


def test_sparse_files_count_by_what_they_use(sandbox: Sandbox) -> None:
    done = run(sandbox, "truncate -s 900M sparse; sleep 1; echo fine", limits=Limits(disk=64 * MIB))
    assert (done.killed, text(done)) == (None, "fine\n")


@pytest.mark.parametrize("place", ["/workspace", "/tmp", "/home/agent"])
def test_numbers_of_files_are_bounded(sandbox: Sandbox, place: str) -> None:
    script = f"cd {place} && mkdir d && cd d && seq 20000 | xargs touch; sleep 100"
    assert run(sandbox, script, limits=Limits(entries=10_000)).killed == "disk: more than 10000 files and folders"


def test_an_abyss_of_folders_is_noticed_and_removed(isolation: Isolation) -> None:
    script = 'python3 -c \'import os\nfor i in range(5000): os.mkdir("d" * 100); os.chdir("d" * 100)\'; sleep 100'
    with new_sandbox(isolation) as sandbox:
        assert run(sandbox, script).killed == "disk: folders nested deeper than 200"
    assert folders(isolation) == []


def test_temporary_folders_have_a_size(sandbox: Sandbox) -> None:
    done = run(sandbox, "for d in /tmp /dev/shm; do head -c 1G /dev/zero > $d/x; stat -c %s $d/x; done")
    assert [int(line) for line in text(done).splitlines() if line.isdigit()] == [256 * MIB, 64 * MIB]


# Files


def test_files_are_written_with_their_folders_for_the_agent_alone(isolation: Isolation, sandbox: Sandbox) -> None:
    sandbox.write_files([("/workspace/a/b/data.csv", b"1"), ("/workspace/.hidden", b""), ("/workspace/é ü", b"2")])
    script = "stat -c '%a %U %n' a a/b a/b/data.csv .hidden 'é ü'; cat a/b/data.csv; echo 3 > a/b/data.csv; cat a/b/*"
    assert text(run(sandbox, script, env={"LANG": "C.UTF-8"})).splitlines() == [
        "755 agent a",
        "755 agent a/b",
        "600 agent a/b/data.csv",
        "600 agent .hidden",
        "600 agent é ü",
        "13",
    ]


@pytest.mark.parametrize(
    "path",
    [
        "/etc/x",
        "/workspace",
        "/workspace/",
        "/workspace/../x",
        "/workspace/a//b",
        "/workspace/./a",
        "x",
        "/workspace/a\0",
    ],
)
def test_other_paths_are_refused(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(ValueError, match="not a plain path under /workspace"):
        sandbox.write_files([(path, b"")])


def test_writing_follows_no_link_and_replaces_what_is_there(
    isolation: Isolation, sandbox: Sandbox, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    run(sandbox, 'ln -s "$1" file; ln -s "$2" folder; mkfifo fifo; mkdir d', str(victim), str(tmp_path))
    sandbox.write_files([("/workspace/file", b"new"), ("/workspace/fifo", b"new")])
    assert text(run(sandbox, "cat file fifo")) == "newnew"
    for path in ("/workspace/folder/x", "/workspace/d"):
        with pytest.raises(OSError, match=f"'{path}' cannot be written"):
            sandbox.write_files([(path, b"new")])
    assert victim.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [victim]


def test_destroy_removes_whatever_an_agent_leaves(isolation: Isolation) -> None:
    script = r"""
    mkdir -p locked/inner ro/inner; touch locked/inner/f ro/inner/f
    python3 -c 'import os
for name in (b"\xff\xfe", b"new\nline", b"-rf", b"*", b" "): os.mkdir(name); open(name + b"/f", "w")
for i in range(150): os.mkdir("d" * 200); os.chdir("d" * 200)'
    mkfifo fifo; ln -s / root; ln -s /nowhere dangling
    python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
    chmod 500 ro ro/inner; chmod 0 locked/inner locked; chmod 0 ~ .
    """
    with new_sandbox(isolation) as sandbox:
        assert run(sandbox, script).output == b""
    assert folders(isolation) == []


def test_a_folder_that_the_sandbox_could_not_reach_is_refused(isolation: Isolation, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    if not isolation.drops_uid:
        pytest.skip("the sandbox's uid is ours, which reaches everything of ours")
    with pytest.raises(ValueError, match=r"closed to uid \d+: make it in Isolation\.sessions"):
        Sandbox(isolation, closed / "session")
