"""Sandboxes in cgroups: set CORE_ROLLOUTS_CGROUP for these tests, or run them in a delegated cgroup."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pytest_core_rollouts.embedded.sandbox import Isolation, Limits, SandboxUnavailable
from pytest_core_rollouts.embedded.sandbox.cgroups import VARIABLE, CgroupParent
from tests.support.sandboxes import new_sandbox, run, text

MIB = 1 << 20


def test_unusable_cgroup_is_an_error_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(SandboxUnavailable, match=VARIABLE):
        Isolation.probe()
    assert list(tmp_path.iterdir()) == []


def test_kernel_enforces_bounds_in_a_cgroup() -> None:
    if (parent := CgroupParent.find()) is None:
        pytest.skip(f"no cgroup was given to us: {VARIABLE} names none, and systemd has not delegated our own")
    left = parent.folder / f"core-rollouts-{2**22 + 1}-dead"  # of a process that cannot be
    left.mkdir()
    isolation = Isolation.probe()
    try:
        with new_sandbox(isolation) as sandbox:
            assert text(run(sandbox, "echo fine")) == "fine\n"
            script = "import os; fd = os.memfd_create('x')\nfor _ in range(400): os.write(fd, bytes(1 << 20))"
            done = asyncio.run(
                sandbox.run(["python3", "-c", script], env={}, limits=Limits(memory=256 * MIB), timeout=30)
            )
            assert (done.killed or "").startswith("memory: "), done
            assert (done.limit_exceeded, done.machine_oom) == (True, True)
            assert f"{256 * MIB} allowed" in (done.killed or "")
        assert list(parent.folder.glob("core-rollouts-*-*")) == []
    finally:
        isolation.close()
