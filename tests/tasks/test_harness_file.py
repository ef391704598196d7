"""Harness files: what they may say, how their paths are read, what is wrong with a bad one, and their digest."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_core_rollouts.tasks.harness_file import HarnessError, load_harness
from pytest_core_rollouts.tasks.matrix import Agent, MatrixError

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a harness file next to an agent, its program and a text."""
    (tmp_path / "agent.py").write_text("print('hello')\n")
    program = tmp_path / "opt" / "bin" / "mini"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    def write(content: str) -> Path:
        path = tmp_path / "own.yaml"
        path.write_text(content)
        return path

    return write


def test_paths_are_relative_to_the_file_and_only_those_of_mounts_are_paths(write: Write, tmp_path: Path) -> None:
    harness = load_harness(
        write(
            "command: [opt/bin/mini, -y, agent.py, opt, 'openai/{model}', run, '{instruction}']\n"
            "resume: [python3, ./agent.py]\nprotocol: responses\nmounts: [opt, agent.py]\nstdin: 'x {instruction}'\n"
            "env: {MODEL: '{model}', EMPTY: ''}\nexit_codes: [0, 3]\nmemory: 2GiB\nskills: .agents/skills\n"
        )
    )
    here = str(tmp_path)
    agent, opt = f"{here}/agent.py", f"{here}/opt"
    assert harness.command == (f"{opt}/bin/mini", "-y", agent, opt, "openai/{model}", "run", "{instruction}")
    assert harness.resume == ("python3", agent)
    assert set(harness.mounts) == {agent, opt}
    assert (harness.name, harness.protocol, harness.stdin) == ("own", "responses", "x {instruction}")
    assert (harness.exit_codes, harness.memory, harness.skills) == ((0, 3), 2 << 30, "/home/agent/.agents/skills")
    assert Agent(harness_file=harness, model="m").slug == "own-m"


BAD = [
    ("protocol: responses", 1, "command: missing; write command: [python3, agent.py]"),
    ("command: [python3]", 1, "protocol: missing; write protocol: chat_completions"),
    ("{base}\nprotocoll: x", 3, "unknown key; did you mean protocol?"),
    ("{base}\nmounts: [nowhere]", 3, "mounts[0]: {here}/nowhere does not exist"),
    ("{base}\nmounts: [/workspace/x]", 3, "does not exist"),
    ("{base}\nmounts: [/proc]", 3, "a sandbox has its own /proc"),
    ("{base}\nmounts: [/]", 3, "a sandbox has its own /"),
    ("{base}\nexit_codes: [0, 256]", 3, "exit_codes[1]: expected an exit status from 0 to 255, got 256"),
    ("{base}\nexit_codes: 0", 3, "write it as [0, 1]"),
    ("{base}\nmemory: 2GB", 3, "expected a size such as 512MiB or 2GiB, got '2GB'"),
    ("{base}\nmemory: 2", 3, "expected a size such as 512MiB or 2GiB, got 2"),
    ("{base}\nenv: {{A: 1}}", 3, "env.A: expected a string, got 1; put it in quotes"),
    ("{base}\nenv: {{'A B': x}}", 3, "invalid name of an environment variable"),
    ("{base}\nenv: {{A: '{{instruction}}'}}", 3, "env.A: the instruction may be too long for a variable"),
    ("{base}\nenv: {{A: '{{modell}}'}}", 3, "env.A: unknown placeholder {{modell}}; known are {{instruction}}"),
    ("{base}\nstdin: 5", 3, "stdin: expected a string, got 5"),
    ("{base}\nskills: ../x", 3, "expected a folder below the agent's home"),
    ("{base}\nresume: []", 3, "resume: expected a list of strings, got an empty one"),
    ("{base}\nresume: python3", 3, "write it as [program, argument]"),
    ("{base}\nresume: [agent.py]", 3, "resume[0]: the program agent.py is not in a sandbox's PATH"),
    ("{base}\nresume: [./agent.py]", 3, "resume[0]: {here}/agent.py is in no mount"),
    ("{base}\nmounts: [agent.py]\nresume: [./agent.py]", 4, "resume[0]: {here}/agent.py is not an executable file"),
    ("{base}\nmounts: [opt]\nresume: [./opt/bin/no]", 4, "resume[0]: {here}/opt/bin/no does not exist"),
    ("{base}\nmounts: [opt]\nresume: [opt/bin/link]", 4, "link to {here}/agent.py, which is in no mount"),
    ("{base}\nresume: [python3, 'do {{instruction}}']", 3, "resume[1]: {{instruction}} must be a separate argument"),
    ("{base}\nprotocol: grpc", 3, "duplicate key"),
    ("command: [python3]\nprotocol: grpc", 2, "invalid choice 'grpc'; choose from chat_completions, responses, anth"),
    ("command: [nonesuch]\nprotocol: responses", 1, "command[0]: the program nonesuch is not in a sandbox's PATH"),
]


@pytest.mark.parametrize(("content", "line", "problem"), BAD, ids=[problem[:50] for _, _, problem in BAD])
def test_bad_file_is_refused_with_its_line(write: Write, tmp_path: Path, content: str, line: int, problem: str) -> None:
    (tmp_path / "opt" / "bin" / "link").symlink_to("../../agent.py")
    (tmp_path / "agent.py").chmod(0o755 if "link" in content else 0o644)
    path = write(content.format(base="command: [python3]\nprotocol: responses"))
    with pytest.raises(HarnessError) as error:
        load_harness(path)
    assert str(error.value).startswith(f"{path}:{line}: "), error.value
    assert problem.format(here=tmp_path) in str(error.value)


def test_file_that_is_not_there_and_bad_names_are_refused(write: Write, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"none.yaml: can't be read: No such file .*; pass the path of a harness"):
        load_harness(tmp_path / "none.yaml")
    path = write("command: [python3]\nprotocol: responses\n")
    harness = load_harness(path.rename(tmp_path / "codex.yaml"))
    with pytest.raises(MatrixError, match=r"codex.yaml: codex is the name of another harness; rename the file"):
        Agent(harness_file=harness).check()
    own = Agent(harness_file=load_harness(path.with_name("codex.yaml").rename(path)), skills=[{"name": "x"}])
    with pytest.raises(MatrixError, match=r"has skills, but .*own.yaml does not say where"):
        own.check()
    with pytest.raises(MatrixError, match="takes no harness_config; write its parameters into"):
        Agent(harness_file=own.harness_file, harness_config={"x": 1}).check()


def test_venv_brings_its_base_python(write: Write, tmp_path: Path) -> None:
    base = tmp_path / "pythons" / "3.99"
    (base / "bin").mkdir(parents=True)
    (base / "bin" / "python3.99").write_text("#!/bin/sh\n")
    (base / "bin" / "python3.99").chmod(0o755)
    for name, home in (("other", base / "bin"), ("same", Path(sys.base_prefix, "bin"))):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "pyvenv.cfg").write_text(f"home = {home}\nversion = 3.99\n")
        (tmp_path / name / "bin" / "python").symlink_to(next(home.glob("python3*")))
    content = "command: [{0}/bin/python, -c, pass]\nprotocol: responses\nmounts: [{0}]\n"
    assert set(load_harness(write(content.format("other"))).mounts) == {str(tmp_path / "other"), str(base)}
    assert load_harness(write(content.format("same"))).mounts == (str(tmp_path / "same"),)


def test_digest_covers_the_file_and_what_it_mounts_from_the_project(write: Write, tmp_path: Path) -> None:
    content = "command: [python3, agent.py]\nprotocol: responses\nmounts: [agent.py, opt, venv]\n"
    packages = tmp_path / "venv" / "lib" / "python3.99" / "site-packages"
    (packages / "mini-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    digests = []

    def changed(project: Path | None = None) -> bool:
        digests.append(Agent(harness_file=load_harness(write(content), project)).digest)
        return digests[-1] not in digests[:-1]

    assert changed()
    (packages / "mini.py").write_text("")
    os.utime(tmp_path / "agent.py", (1, 1))
    assert not changed(), "the packages of a venv count by name and version, files by content"
    (packages / "mini-1.0.dist-info").rename(packages / "mini-1.1.dist-info")
    assert changed()
    (tmp_path / "agent.py").write_text("print('hi')\n")
    assert changed()
    (tmp_path / "opt" / "new").touch()
    assert changed()
    content += "env: {A: b}\n"
    assert changed()
    assert changed(tmp_path / "opt")
