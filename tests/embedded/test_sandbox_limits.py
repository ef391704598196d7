"""What one command may use up: memory, processes, disk, files."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from pytest_core_rollouts.embedded.sandbox import Isolation, Limits, Sandbox

from .sandboxes import folders, new_sandbox, processes_with, run, text

MIB = 1 << 20


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
    assert (done.limit_exceeded, done.timed_out, done.machine_oom) == (True, False, False)


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
