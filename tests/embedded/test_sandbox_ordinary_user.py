"""Sandboxes made by an ordinary user, when the tests run as root (else all the other tests are that test)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_core_rollouts
from pytest_core_rollouts.embedded.sandbox import Isolation

SCRIPT = """
import asyncio, os, sys
from pathlib import Path
from pytest_core_rollouts.embedded.sandbox import Isolation, Limits, Sandbox

assert os.getuid() != 0
isolation = Isolation.probe(hidden=[Path(sys.argv[1])])
assert isolation.uid == os.getuid()
sandbox = Sandbox(isolation, isolation.sessions / "one")
sandbox.write_files([("/workspace/in/data", b"data")])

def run(script, **options):
    return asyncio.run(sandbox.run(["bash", "-c", script], env={}, **options))

output = run("id -u; cat in/data; echo; mkdir outputs; echo 1 > outputs/a; chmod 0 outputs/a outputs").output
print(output.decode(), end="")
print([(file.path, file.file.read_text()) for file in sandbox.collect_outputs(isolation.folder / "into")])
print(run("trap '' TERM; setsid nohup sleep 1000 & sleep 1000", timeout=0.3).killed)
print(run("mkdir d; head -c 50M /dev/zero > d/x; chmod 0 d; sleep 100", limits=Limits(disk=20 << 20)).killed[:15])
hold = "python3 -c '%s; import time; time.sleep(100)'"
for hidden in (
    "import mmap; m = mmap.mmap(-1, 400 << 20); m.write(bytes(400 << 20))",
    "import os; os.write(os.memfd_create(str()), bytes(400 << 20))",
    "import ctypes; c = ctypes.CDLL(None); print(sum(c.inotify_init() > 0 for _ in range(20)), flush=True)",
):
    done = run(hold % hidden, limits=Limits(memory=256 << 20), timeout=3)
    print(done.output.decode().strip(), done.killed[:7], done.limit_exceeded)
print(set(isolation.namespaces.bound(os.getpid(), {"user/max_inotify_instances": "128"})))
print(run("for i in $(seq 20); do sleep 1 & done; wait", limits=Limits(processes=30)).output)
print(run("mkdir -p x/y; chmod 0 x/y x . ~").returncode)
sandbox.destroy()
print(sorted(path.name for path in isolation.sessions.iterdir()))
isolation.close()
print(isolation.folder.exists())
"""


@pytest.mark.slow
def test_an_ordinary_user_can_make_sandboxes() -> None:
    if os.geteuid() != 0:
        pytest.skip("the tests run as an ordinary user anyway")
    rooted = Isolation.probe()
    try:
        # Everything the user needs where the user can reach it: Python, bwrap, and the package.
        copied = rooted.folder / "python"
        python = copied / "bin" / "python3" if copied.exists() else Path(sys.base_prefix, "bin", "python3")
        package = rooted.folder / "package"
        shutil.copytree(
            Path(pytest_core_rollouts.__file__).parent / "embedded" / "sandbox",
            package / "pytest_core_rollouts" / "embedded" / "sandbox",
        )
        for module in ("hidden.py", "descriptors.py"):
            source = Path(pytest_core_rollouts.__file__).parent / "embedded" / module
            shutil.copy(source, package / "pytest_core_rollouts" / "embedded" / module)
        for folder in (package, *package.rglob("*")):
            folder.chmod(0o755)
        done = subprocess.run(
            [
                "setpriv",
                f"--reuid={rooted.uid}",
                f"--regid={rooted.uid}",
                "--clear-groups",
                python,
                "-c",
                SCRIPT,
                package,
            ],
            cwd="/",
            env={
                "PATH": f"{rooted.bubblewrap.file.parent}:/usr/bin:/bin",
                "PYTHONPATH": str(package),
                "LD_LIBRARY_PATH": str(copied / "lib"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
    finally:
        rooted.close()
    assert done.stdout.splitlines() == [
        "1000",
        "data",
        "[('/workspace/outputs/a', '1\\n')]",
        "timeout",
        "disk: at least ",
        " memory: True",
        " memory: True",
        "8 timeout False",
        "set()",
        "b''",
        "0",
        "[]",
        "False",
    ]
