"""What one command may use up: memory, processes, disk, files."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import uuid

import pytest

from pytest_core_rollouts.embedded.sandbox import Isolation, Limits, Sandbox, watch
from pytest_core_rollouts.embedded.sandbox.namespaces import NamespaceHelper
from pytest_core_rollouts.embedded.sandbox.usage import temporary_entries
from tests.support.sandboxes import folders, new_sandbox, processes_with, run, text

MIB = 1 << 20
SMALL = Limits(memory=256 * MIB)
MEMORY_EXCESS = re.compile(r"memory: \d+ bytes used, \d+ allowed")


def test_size_of_a_file_is_limited(sandbox: Sandbox) -> None:
    done = run(sandbox, "head -c 2000000 /dev/zero > big; stat -c %s big", limits=Limits(file_size=MIB))
    assert text(done).splitlines()[-1] == str(MIB)


def test_memory_of_one_process_is_bounded(sandbox: Sandbox) -> None:
    done = run(sandbox, "python3 -c 'bytearray(3 << 30)'", limits=Limits(address_space=1 << 30))
    assert "MemoryError" in text(done)


def test_memory_of_many_processes_is_bounded(sandbox: Sandbox) -> None:
    script = "for i in 1 2 3 4; do python3 -c 'import time; x = b\"x\" * (60 << 20); time.sleep(100)' & done; wait"
    done = run(sandbox, script, limits=Limits(memory=150 * MIB))
    assert MEMORY_EXCESS.fullmatch(done.killed or "")
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


def test_limit_on_processes_is_separate_for_each_sandbox(isolation: Isolation) -> None:
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
    used = re.fullmatch(rf"disk: at least (\d+) bytes used, {64 * MIB} allowed", done.killed or "")
    assert used is not None
    assert int(used[1]) > 64 * MIB


def test_sparse_files_count_by_what_they_use(sandbox: Sandbox) -> None:
    done = run(sandbox, "truncate -s 900M sparse; sleep 1; echo fine", limits=Limits(disk=64 * MIB))
    assert (done.killed, text(done)) == (None, "fine\n")


@pytest.mark.parametrize("place", ["/workspace", "/tmp", "/home/agent"])
def test_numbers_of_files_are_bounded(sandbox: Sandbox, place: str) -> None:
    script = f"cd {place} && mkdir d && cd d && seq 20000 | xargs touch; sleep 100"
    done = run(sandbox, script, limits=Limits(entries=10_000))
    assert re.fullmatch(r"disk: at least \d+ files and folders, 10000 allowed", done.killed or "")


def test_files_of_the_machine_are_not_counted_while_a_sandbox_is_made() -> None:
    """Its first process sees the machine's own /tmp then, as this process does."""
    assert temporary_entries(os.getpid()) == 0


def test_deeply_nested_folders_are_noticed_and_removed(isolation: Isolation) -> None:
    script = 'python3 -c \'import os\nfor i in range(5000): os.mkdir("d" * 100); os.chdir("d" * 100)\'; sleep 100'
    with new_sandbox(isolation) as sandbox:
        assert run(sandbox, script).killed == "disk: folders nested deeper than 200"
    assert folders(isolation) == []


def test_size_of_temporary_folders_is_limited(sandbox: Sandbox) -> None:
    done = run(sandbox, "for d in /tmp /dev/shm; do head -c 1G /dev/zero > $d/x; stat -c %s $d/x; done")
    assert [int(line) for line in text(done).splitlines() if line.isdigit()] == [256 * MIB, 64 * MIB]


FILL_SOCKETS = """
import os, socket
keep = []
for _ in range(5): os.fork()
for _ in range(400):
    a, b = socket.socketpair(); a.setblocking(False); keep += [a, b]
    try:
        while True: a.send(bytes(65536))
    except BlockingIOError: pass
"""
INOTIFY = """if True:
    import ctypes, os, time
    if os.fork():
        os.wait()
    libc = ctypes.CDLL(None)
    print(sum(libc.inotify_init() >= 0 for _ in range(100)), flush=True)
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            "import mmap; m = mmap.mmap(-1, 400 << 20)\nfor at in range(0, len(m), 4096): m[at] = 1",
            id="shared mapping",
        ),
        pytest.param(
            "import mmap; m = mmap.mmap(-1, 400 << 20)\n"
            "for at in range(0, len(m), 4096):\n"
            "    m[at] = 1\n"
            "    if at % (16 << 20) == 0: m.madvise(mmap.MADV_DONTNEED)",
            id="shared mapping, pages given back by the process",
        ),
        pytest.param(
            "import os; fd = os.memfd_create('x'); [os.write(fd, bytes(MIB)) for _ in range(400)]", id="memfd"
        ),
        pytest.param(
            "import os, socket; a, b = socket.socketpair()\n"
            "for _ in range(4):\n"
            "    fd = os.memfd_create('x'); [os.write(fd, bytes(MIB)) for _ in range(100)]\n"
            "    socket.send_fds(a, [b'x'], [fd]); os.close(fd)",
            id="memfds in flight",
        ),
        pytest.param(
            "import ctypes; c = ctypes.CDLL(None); c.shmat.restype = ctypes.c_void_p\n"
            "for _ in range(4):\n"
            "    p = c.shmat(c.shmget(0, 100 * MIB, 0o1600), None, 0)\n"
            "    ctypes.memset(p, 1, 100 * MIB); c.shmdt(ctypes.c_void_p(p))",
            id="System V, detached",
        ),
        pytest.param(FILL_SOCKETS, id="socket buffers"),
        pytest.param(
            "import os\n"
            "keep, ballast = [], bytearray(b'x') * (120 * MIB)\n"
            "for _ in range(5): os.fork()\n"
            "for _ in range(480):\n"
            "    r, w = os.pipe(); os.set_blocking(w, False); keep.append(r)\n"
            "    try:\n"
            "        while True: os.write(w, bytes(65536))\n"
            "    except BlockingIOError: pass",
            id="pipes",
        ),
        pytest.param(
            "open('/dev/shm/x', 'wb').write(bytes(60 * MIB)); keep = bytearray(b'x') * (220 * MIB)", id="tmpfs"
        ),
        pytest.param(
            "import ctypes; c = ctypes.CDLL(None)\n"
            "while c.semget(0, 1000, 0o1600) >= 0: pass\n"
            "keep = bytearray(b'x') * (400 * MIB)",
            id="semaphores are bounded, memory is counted",
        ),
    ],
)
def test_memory_of_every_kind_is_counted(sandbox: Sandbox, script: str) -> None:
    script = f"import time; MIB = 1 << 20\n{script}\nkeep_all = dict(globals()); time.sleep(100)"
    done = asyncio.run(sandbox.run(["python3", "-c", script], env={}, limits=SMALL, timeout=30))
    assert MEMORY_EXCESS.fullmatch(done.killed or ""), (done.killed, text(done)[-500:])
    assert done.limit_exceeded


def test_pages_that_processes_share_count_once(sandbox: Sandbox) -> None:
    script = """if True:
        import mmap, os, time
        own, shared = bytearray(b"x") * (80 << 20), mmap.mmap(-1, 40 << 20)
        shared.write(bytes(40 << 20))
        memfd = os.memfd_create("x")
        os.write(memfd, bytes(10 << 20))
        for _ in range(3):
            os.fork()
        sum(shared[::4096])
        time.sleep(2)
    """
    done = asyncio.run(sandbox.run(["python3", "-c", script], env={}, limits=SMALL, timeout=30))
    assert (done.killed, done.returncode) == (None, 0)


def test_memory_is_checked_while_files_are_counted(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = threading.Event()

    def count_for_long(*_: object, **__: object) -> None:
        counted.wait(30)

    monkeypatch.setattr(watch, "disk_excess", count_for_long)
    try:
        done = run(sandbox, "python3 -c 'import time; x = b\"x\" * (400 << 20); time.sleep(100)'", limits=SMALL)
    finally:
        counted.set()
    assert MEMORY_EXCESS.fullmatch(done.killed or "")


def test_inotify_instances_are_bounded(sandbox: Sandbox) -> None:
    done = asyncio.run(sandbox.run(["python3", "-c", INOTIFY], env={}, timeout=30))
    assert (text(done), done.killed) == ("8\n8\n", None)


def test_descriptors_in_flight_are_bounded(sandbox: Sandbox) -> None:
    """The kernel counts them for all sandboxes together: 1,250 of one agent made sendmsg of the others fail."""
    script = """if True:
        import socket, sys, time
        a, b = socket.socketpair()
        for _ in range(2):
            socket.send_fds(a, [b"x"], [0] * int(sys.argv[1]))
        time.sleep(float(sys.argv[2]))
    """
    fine, over = (
        asyncio.run(sandbox.run(["python3", "-c", script, *arguments], env={}, timeout=30))
        for arguments in (("100", "1.5"), ("150", "100"))
    )
    assert (fine.killed, fine.returncode) == (None, 0)
    assert over.killed == "descriptors in flight: 300 sent and not received, 256 allowed"
    assert over.limit_exceeded


def test_watcher_counts_if_namespaces_cannot_be_entered(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(NamespaceHelper, "_exchange", refuse)
    argv = ["python3", "-c", INOTIFY + "    time.sleep(100)"]
    done = asyncio.run(sandbox.run(argv, env={}, timeout=30))
    assert (done.killed, done.limit_exceeded) == ("inotify: 100 instances, 8 allowed", True)
    argv = ["python3", "-c", FILL_SOCKETS + "import time; time.sleep(100)"]
    done = asyncio.run(sandbox.run(argv, env={}, timeout=30, limits=SMALL))
    assert MEMORY_EXCESS.fullmatch(done.killed or "")


def test_pages_cannot_be_hidden_in_pipes(sandbox: Sandbox) -> None:
    script = """if True:
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        print(libc.vmsplice(os.pipe()[1], None, 0, 0), os.strerror(ctypes.get_errno()))
    """
    done = asyncio.run(sandbox.run(["python3", "-c", script], env={}, timeout=30))
    assert text(done) == "-1 Operation not permitted\n"


def test_the_kernel_kills_sandboxes_first_when_memory_is_short(sandbox: Sandbox) -> None:
    assert text(run(sandbox, "cat /proc/self/oom_score_adj")) == "800\n"
