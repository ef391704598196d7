"""The whole loop on the embedded Core: the bundled tasks in real sandboxes, and what a sandbox can't see."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Project, node_ids, outcomes, text_of

pytestmark = pytest.mark.usefixtures("no_core")

REPOSITORY = Path(__file__).parents[2]
TASKS = ("failed-logins", "inventory-bug", "orders-json", "salaries-sqlite", "sales-by-region")


@pytest.fixture
def bundled(project: Project) -> Project:
    shutil.copytree(REPOSITORY / "tasks", project.path / "tasks")
    return project


def table(result: pytest.RunResult) -> list[str]:
    """The rows of the run's tables, without what differs from run to run: durations."""
    return [re.sub(r" \d+\.\d \|$", " |", line) for line in result.outlines if line.startswith("|")]


def test_oracle_solves_every_bundled_task_and_nop_none(bundled: Project) -> None:
    result = bundled.run("tasks", "--core", "embedded", "--harness", "oracle", "--harness", "nop")
    assert outcomes(result) == {"passed": 5, "failed": 5}, text_of(result)
    assert result.ret == 1
    rewards = {(row["task"], row["harness"]): (row["status"], row["reward"]) for row in bundled.records}
    assert rewards == {(task, "oracle"): ("completed", 1.0) for task in TASKS} | {
        (task, "nop"): ("completed", 0.0) for task in TASKS
    }
    assert all(row["items"] for row in bundled.records)


def test_the_options_alone_run_the_tasks_and_two_workers_give_the_same_table(bundled: Project) -> None:
    bundled.unit_tests()
    bundled.ini("testpaths = tests")
    one = bundled.run("--core", "embedded", "--samples", "2")
    two = bundled.run_apart("--core", "embedded", "--samples", "2", "-n", "2")
    for result in (one, two):
        assert outcomes(result) == {"passed": 10}, text_of(result)
        assert result.ret == 0
    assert table(one) == table(two)
    assert len(table(one)) == 3, "nothing needs a look: only a row for the agent"
    assert len(bundled.results) == 2
    assert all(path.read_text().count("\n") == 10 for path in bundled.results)
    assert {row["harness"] for row in bundled.records} == {"oracle"}


def test_collecting_for_the_embedded_core_starts_nothing(bundled: Project) -> None:
    result = bundled.run("--core", "embedded", "--samples", "2", "--collect-only", "-q")
    assert len(node_ids(result)) == 10
    assert not bundled.results


@pytest.mark.parametrize(
    "yaml", ["network: enabled", "network: {allowed_domains: [example.com]}", "packages: {python: [six]}"]
)
def test_a_task_that_needs_what_the_embedded_core_lacks_is_skipped(project: Project, yaml: str) -> None:
    task = project.task("sum", yaml=yaml)
    project.write("tasks/sum/solution/solve.sh", "true")
    result = project.run("--core", "embedded", "-rs")
    assert task.exists()
    assert outcomes(result) == {"skipped": 1}, text_of(result)
    result.stdout.fnmatch_lines(["*SKIPPED*the embedded Core *"])


def test_setup_commands_and_env_reach_the_sandbox(project: Project) -> None:
    project.task(
        "sum",
        yaml="env: {WORD: 'hé $x'}\nsetup_commands: ['printf %s \"$WORD\" > word.txt']\n",
        expected={"x": "hé $x"},
    )
    solution = (
        "python3 -c \"import json, os; os.makedirs('outputs'); "
        "json.dump({'x': open('word.txt').read()}, open('outputs/answer.json', 'w'))\"\n"
    )
    project.write("tasks/sum/solution/solve.sh", solution)
    result = project.run("--core", "embedded")
    assert outcomes(result) == {"passed": 1}, text_of(result)


def test_a_solution_that_fails_is_an_error_and_not_a_wrong_answer(project: Project) -> None:
    project.task("sum")
    project.write("tasks/sum/solution/solve.sh", "echo broken >&2\nexit 3\n")
    result = project.run("--core", "embedded", "--rollout-retries", "0")
    assert outcomes(result) == {"error": 1} or outcomes(result) == {"errors": 1}, text_of(result)
    [row] = project.records
    assert row["reward"] is None
    assert "3" in row["error"]


def test_an_answer_does_not_count_if_the_agent_runs_past_its_limit(project: Project) -> None:
    project.task("sum")
    write = "mkdir -p outputs; echo '{\"x\": 1}' > outputs/answer.json\n"
    project.write("tasks/sum/solution/solve.sh", f"{write}sleep 600\n")
    result = project.run("--core", "embedded", "--rollout-timeout", "3")
    assert outcomes(result) == {"failed": 1}, text_of(result)
    [row] = project.records
    assert (row["status"], row["reward"], row["answer"]) == ("timeout", 0.0, None)
    assert table(result)[2].split("|")[2].strip() == "1/1"


def test_every_kind_of_file_arrives_byte_for_byte(project: Project) -> None:
    contents = {
        "all.bin": bytes(range(256)),
        "data.sqlite": b"SQLite format 3\0" + os.urandom(500),
        "lines.txt": b"a\r\nb\n\r",
        "empty.txt": b"",
        ".env": b"A=1",
        ".git/HEAD": b"ref: x",
        "deep/é.txt": "é".encode(),
    }
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}
    for name, yaml in (("single", None), ("packed", "pack: true")):
        project.task(name, expected=digests, yaml=yaml)
        for path, content in contents.items():
            project.write(f"tasks/{name}/files/{path}", content)
        project.write(f"tasks/{name}/solution/solve.sh", DIGESTS)
    result = project.run("--core", "embedded")
    assert outcomes(result) == {"passed": 2}, text_of(result)


DIGESTS = """python3 - <<'END'
import hashlib, json, os
from pathlib import Path

found = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in Path().rglob("*") if path.is_file()}
os.mkdir("outputs")
Path("outputs/answer.json").write_text(json.dumps(found))
END
"""


@pytest.fixture
def listener() -> Iterator[tuple[int, list[object]]]:
    """A port of this machine's loopback, and who connected to it."""
    server = socket.create_server(("127.0.0.1", 0))
    seen: list[object] = []

    def accept() -> None:
        try:
            while len(seen) < 100:
                seen.append(server.accept()[1])
        except OSError:
            return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield server.getsockname()[1], seen
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(5)


SEARCH = r"""
import json, os, socket, stat
CANARIES = {canaries!r}
found, opened, seen = [], [], 0
for folder, folders, files in os.walk("/"):
    if folder == "/proc" or folder.startswith(("/proc/sys", "/sys")):
        folders[:] = [name for name in folders if name.isdigit()]
    for name in [*folders, *files]:
        path = os.path.join(folder, name)
        if name == "expected.json" or path.endswith({project!r}):
            found.append(path)
    for name in files:
        path = os.path.join(folder, name)
        try:
            mode = os.lstat(path)
            if not stat.S_ISREG(mode.st_mode) or (mode.st_size > 2_000_000 and not folder.startswith("/proc")):
                continue
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            data = os.read(fd, 2_000_000)
        except OSError:
            continue
        finally:
            os.close(fd)
        seen += 1
        for canary in CANARIES:
            if canary[::-1].encode() in data:
                found.append(path + " holds " + canary)
addresses = [("127.0.0.1", {port}), ("127.0.0.1", {core_port}), ("localhost", 22), ("192.0.2.1", 80), ("1.1.1.1", 53)]
for address in addresses:
    try:
        socket.create_connection(address, timeout=1).close()
        opened.append(address)
    except OSError:
        pass
for line in open("/proc/net/unix").read().splitlines()[1:]:
    name = line.split()[-1]
    if name.startswith("@"):
        opened.append(name)
os.makedirs("outputs", exist_ok=True)
json.dump(
    {{"found": sorted(set(found)), "opened": opened, "searched": seen > 500, "env": sorted(os.environ)}},
    open("outputs/answer.json", "w"),
)
"""


@pytest.mark.slow
def test_a_solution_that_searches_everything_finds_nothing(
    project: Project, listener: tuple[int, list[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks for the expected answer, task folders, keys, other Sessions' workspaces, and for a way out."""
    port, connected = listener
    canaries = [f"canary-{number}-{os.urandom(6).hex()}" for number in range(3)]
    expected = {"found": [], "opened": [], "searched": True}
    project.task("search", expected={**expected, "never": canaries[0]})
    project.task("neighbor", expected={"x": canaries[0]}, files={"data.txt": canaries[1]})
    project.write("tasks/neighbor/solution/solve.sh", "mkdir -p outputs; cp data.txt outputs/; sleep 4\n")
    monkeypatch.setenv("OPENAI_API_KEY", canaries[2])
    monkeypatch.setenv("SOME_TOKEN", canaries[2])
    backwards = [canary[::-1] for canary in canaries]  # so that the script does not find itself
    script = SEARCH.format(canaries=backwards, project=project.path.name, port=port, core_port=port)
    project.write(
        "tasks/search/solution/solve.sh", f"cat > /tmp/search.py <<'END'\n{script}\nEND\npython3 /tmp/search.py\n"
    )
    result = project.run("--core", "embedded", "--rollout-concurrency", "2")
    answers = {row["task"]: row["answer"] for row in project.records}
    assert "search" in answers, text_of(result)
    answer = answers["search"]
    assert answer is not None, text_of(result)
    assert {key: answer[key] for key in expected} == expected, json.dumps(answer, indent=1)
    assert not any("KEY" in name or "TOKEN" in name for name in answer["env"])
    assert connected == []
