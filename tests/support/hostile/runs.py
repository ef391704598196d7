"""Runs hostile agents, each with two honest rollouts, and reports what is left on the machine afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.agents import KEY
from tests.support.scripted_models import Ask, Reply, Say, ScriptedModel, Shell

from .agents import MARK, RIGHT, SEGMENT_KEY, Hostile

CANARY = "canary-7f3a90c1d2"
"""Is in every expected.json that a hostile agent should not know."""
SECRET = "suite-secret-51b0e8"
"""The value of a variable that the tasks declare to be secret."""

HONEST = """
set -eu
for i in $(seq {rounds}); do
  seq $i $((i + 200)) >work.txt
  test "$(wc -l <work.txt)" = 201
  sleep 0.1
done
test "$(cat input.txt)" = "the input of {name}"
test -z "$(find /tmp /dev/shm -mindepth 1 ! -name solve.sh ! -path '*codex*' ! -user agent)"
test -z "$(find /dev/shm -mindepth 1)"
test "$(find /workspace -type f | sort | tr '\\n' ' ')" = "/workspace/input.txt /workspace/work.txt "
mkdir outputs
echo '{{"x": 1}}' >outputs/answer.json
"""
"""Works for a while, and answers only if everything is as it left it."""

SMALL_LIMITS = """
import sys
if "pytest_core_rollouts.embedded" in getattr(sys, "orig_argv", ()):
    import dataclasses
    from pytest_core_rollouts.embedded.sandbox.limits import MIB, Limits
    small = {"memory": MEMORY * MIB, "disk": 160 * MIB, "entries": 20_000}
    defaults = {field.name: field.default for field in dataclasses.fields(Limits)}
    Limits.__init__.__defaults__ = tuple({**defaults, **small}.values())
"""
"""A sitecustomize.py: the Core's sandboxes have small bounds, so that going over them costs this machine little."""

GUARD = """
import ctypes, json, os, sys, time
from pathlib import Path
import pytest

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: whatever the run leaves becomes a child of ours
code = pytest.main(sys.argv[2:])

def children():
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    pids = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    return [Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace") for pid in pids]

deadline = time.monotonic() + 10
while (left := children()) and time.monotonic() < deadline:
    time.sleep(0.05)
Path(sys.argv[1]).write_text(json.dumps(left))
sys.stdout.flush()
os._exit(code)
"""
"""Runs pytest and then lists the processes that it left."""


@dataclass(frozen=True)
class Finished:
    """A run that ended: its exit code, what it printed, its rows by task, and what it left on the machine."""

    code: int
    printed: str
    rows: Mapping[str, dict[str, Any]]
    left: Mapping[str, Sequence[str]]

    def neighbors(self, name: str) -> list[dict[str, Any]]:
        """The rows of the two honest rollouts that ran with a hostile agent."""
        return [row for task, row in self.rows.items() if task.partition("-")[2] == name and is_honest(task)]


def task_id(number: int, kind: str, name: str) -> str:
    """Neighbors come first, so that they are in flight when the hostile agent starts."""
    return f"{number:03}{kind}-{name}"


def is_honest(task: str) -> bool:
    return task.partition("-")[0][-1] in "ab"


def write_project(folder: Path, agents: Sequence[Hostile], *, idle: bool = False) -> None:
    """Tasks for the agents and their neighbors. `idle`: the hostile agents sleep instead."""
    for number, agent in enumerate(agents):
        for kind in "ab":
            name = task_id(number, kind, agent.name)
            solution = HONEST.format(rounds=agent.rounds, name=name)
            _write_task(folder / "tasks" / name, solution, {"x": 1})
        expected = agent.expected or ({"x": 1} if agent.reward else {"x": CANARY})
        solution = "sleep 1" if idle else agent.script
        _write_task(folder / "tasks" / task_id(number, "z", agent.name), solution, expected, agent.yaml)
    for number in range(2):  # the Core still serves
        name = task_id(900 + number, "a", "after")
        _write_task(folder / "tasks" / name, HONEST.format(rounds=10, name=name), {"x": 1})


def _write_task(folder: Path, solution: str, expected: Any, settings: str = "") -> None:
    (folder / "files").mkdir(parents=True)
    (folder / "solution").mkdir()
    (folder / "instruction.md").write_text(f"Do {folder.name}.\n")
    (folder / "expected.json").write_text(json.dumps(expected))
    (folder / "files" / "input.txt").write_text(f"the input of {folder.name}\n")
    (folder / "solution" / "solve.sh").write_text(f"{solution}\ntrue\n")
    env = yaml.safe_dump({"env": {"SUITE": {"from_env": "SUITE_SECRET", "secret": True}}})
    (folder / "task.yaml").write_text(f"{env}{settings}\n")


@contextmanager
def scripted_model(agents: Sequence[Hostile]) -> Iterator[ScriptedModel]:
    """A model whose one command is what the task's agent does."""
    commands: dict[str, str] = {}
    for number, agent in enumerate(agents):
        commands[task_id(number, "z", agent.name)] = agent.script
        for kind in "ab":
            name = task_id(number, kind, agent.name)
            commands[name] = HONEST.format(rounds=agent.rounds, name=name)
    for number in range(2):
        name = task_id(900 + number, "a", "after")
        commands[name] = HONEST.format(rounds=10, name=name)

    def script(ask: Ask) -> Reply:
        [command, *_] = [command for name, command in commands.items() if f"Do {name}." in ask.text] or [RIGHT]
        return Shell(f"( {command}\n)") if ask.step == 0 else Say("Done.")

    with ScriptedModel(script) as model:
        yield model


def run(folder: Path, *options: str, memory_mib: int = 256, seconds: float = 240) -> Finished:
    """Run the tasks of a project on the embedded Core. `folder` gets nothing but what a run of a user's leaves."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as scratch:
        helpers, temporary = Path(scratch, "helpers"), Path(scratch, "temporary")
        for place in (helpers, temporary):
            place.mkdir()
        Path(scratch).chmod(0o755)
        (helpers / "sitecustomize.py").write_text(SMALL_LIMITS.replace("MEMORY", str(memory_mib)))
        (helpers / "guard.py").write_text(GUARD)
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "OPENAI_"))},
            **{
                "PYTHONPATH": f"{helpers}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep),
                "TMPDIR": str(temporary),
                "SUITE_SECRET": SECRET,
                "MODEL_API_KEY": KEY,
            },
            "PYTEST_ADDOPTS": "-p no:hypothesispytest -p no:anyio -p no:cacheprovider",
        }
        before = set(_files(folder))
        command = [sys.executable, str(helpers / "guard.py"), str(helpers / "left.json"), "tasks", "--core", "embedded"]
        done = subprocess.run(
            [*command, *options], cwd=folder, env=env, capture_output=True, timeout=seconds, check=False
        )
        printed = (done.stdout + done.stderr).decode("utf-8", "replace")
        lines = [line for path in (folder / "runs").glob("*.jsonl") for line in path.read_bytes().splitlines()]
        rows = {row["task"]: row for row in map(json.loads, lines)}
        left = {
            "processes": json.loads((helpers / "left.json").read_text()),
            "temporary files": _files(temporary),
            "files of the project": sorted(set(_files(folder)) - before),
            "shared memory and sockets": _marked(),
        }
    return Finished(done.returncode, printed, rows, left)


def _files(folder: Path) -> list[str]:
    """What is below a folder, except in `runs`, whose names are checked by other tests."""
    return sorted(
        os.fsdecode(path.relative_to(folder))
        for path in folder.rglob("*")
        if "runs" not in path.parts and "__pycache__" not in path.parts
    )


def _marked() -> list[str]:
    """What has the agents' name, or their key, outside of every sandbox."""
    found = [str(path) for place in ("/dev/shm", "/tmp", "/var/tmp") for path in Path(place).glob(f"*{MARK}*")]
    found += [line for line in Path("/proc/net/unix").read_text().splitlines() if MARK in line]
    for table in ("shm", "msg", "sem"):
        lines = Path("/proc/sysvipc", table).read_text().splitlines()[1:]
        found += [f"{table}: {line}" for line in lines if int(line.split()[0]) == SEGMENT_KEY]
    return found
