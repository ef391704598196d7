"""Running commands: environment, input, output; and a sandbox's files."""

from __future__ import annotations

import asyncio
import random
import signal
import uuid
from pathlib import Path

import pytest

from pytest_core_rollouts.embedded.sandbox import Isolation, Sandbox, SandboxFailed
from tests.support.sandboxes import folders, new_sandbox, processes_with, run, text
from tests.support.tables import rows

MIB = 1 << 20


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


def test_unread_stdin_does_not_block_a_run(sandbox: Sandbox) -> None:
    assert run(sandbox, "exec <&-; exit 3", stdin=b"x" * MIB).returncode == 3


def test_files_stay_from_run_to_run_and_temporary_ones_do_not(sandbox: Sandbox) -> None:
    run(sandbox, "echo kept > file; echo kept > ~/file; echo gone > /tmp/file")
    assert text(run(sandbox, "cat file ~/file; ls /tmp")) == "kept\nkept\n"


def test_result_is_bounded_and_on_output_gets_everything(sandbox: Sandbox) -> None:
    sizes: list[int] = []
    done = run(
        sandbox, "head -c 30000000 /dev/zero", output_limit=1000, on_output=lambda chunk: sizes.append(len(chunk))
    )
    assert (len(done.output), done.truncated, sum(sizes)) == (1000, True, 30_000_000)
    assert max(sizes) <= 1 << 16


def test_exception_of_on_output_ends_the_run_and_is_raised(sandbox: Sandbox) -> None:
    def refuse(chunk: bytes) -> None:
        raise LookupError("not this")

    token = uuid.uuid4().hex
    with pytest.raises(LookupError, match="not this"):
        run(sandbox, "echo x; sleep 1000", token, on_output=refuse)
    assert processes_with(token) == []


def test_failed_start_reports_the_message_of_bwrap(isolation: Isolation, sandbox: Sandbox) -> None:
    with pytest.raises(SandboxFailed, match=r"did not start: .*no-such-place"):
        run(sandbox, "true", binds=[(Path("/no-such-place"), "/opt/x")])


def test_invalid_environment_variable_is_refused(sandbox: Sandbox) -> None:
    for env in ({"A=B": "x"}, {"": "x"}, {"A": "x\0y"}):
        with pytest.raises(ValueError, match="invalid environment variable"):
            run(sandbox, "true", env=env)


def test_a_host_path_can_be_shown_read_only(sandbox: Sandbox, isolation: Isolation) -> None:
    shown = isolation.folder / "shown"
    shown.mkdir(mode=0o755)
    (shown / "file").write_text("here")
    done = run(sandbox, "cat /opt/x/file; touch /opt/x/y", binds=[(shown, "/opt/x")])
    assert text(done).startswith("here")
    assert "Read-only file system" in text(done)


def test_many_sandboxes_run_at_once(isolation: Isolation) -> None:
    async def one(number: int) -> bytes:
        with new_sandbox(isolation) as sandbox:
            return (await sandbox.run(["bash", "-c", f"echo {number}"], env={})).output

    async def all_of_them() -> list[bytes]:
        return list(await asyncio.gather(*(one(number) for number in range(60))))

    assert asyncio.run(all_of_them()) == [f"{number}\n".encode() for number in range(60)]


# Files


def test_files_are_written_with_folders_that_only_the_agent_can_read(isolation: Isolation, sandbox: Sandbox) -> None:
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


@rows(
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
def test_paths_outside_the_workspace_are_refused(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(ValueError, match="expected a path under /workspace"):
        sandbox.write_files([(path, b"")])


def test_writing_follows_no_link_and_replaces_files(isolation: Isolation, sandbox: Sandbox, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    run(sandbox, 'ln -s "$1" file; ln -s "$2" folder; mkfifo fifo; mkdir d', str(victim), str(tmp_path))
    sandbox.write_files([("/workspace/file", b"new"), ("/workspace/fifo", b"new")])
    assert text(run(sandbox, "cat file fifo")) == "newnew"
    for path in ("/workspace/folder/x", "/workspace/d"):
        with pytest.raises(OSError, match=f"'{path}' can't be written"):
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


def test_folder_that_the_sandbox_cannot_reach_is_refused(isolation: Isolation, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    if not isolation.drops_uid:
        pytest.skip("the sandbox has this process's uid, which can reach the folder")
    with pytest.raises(ValueError, match=r"uid \d+ can't enter a folder above it; create it in Isolation\.sessions"):
        Sandbox(isolation, closed / "session")
