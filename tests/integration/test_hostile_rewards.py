"""No agent turns its 0 into a missing reward: each trick, by a real program on the embedded Core, is reward 0."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.integration.conftest import Project, text_of
from tests.support.agents import KEY, needs_codex
from tests.support.scripted_models import Ask, Fail, Reply, Say, ScriptedModel, Shell

pytestmark = pytest.mark.usefixtures("no_core")

RIGHT = "mkdir -p outputs && echo '{\"x\": 1}' >outputs/answer.json"
CODEX = "for p in /proc/[0-9]*; do case $(readlink $p/exe) in */codex) pid=${p#/proc/}; break;; esac; done"
FORWARDER = (
    "for p in /proc/[0-9]*; do "
    "case $(tr '\\0' ' ' <$p/cmdline) in python3*forwarder*) pid=${p#/proc/}; break;; esac; done"
)
FORGED = (
    '{"type":"exit","status":"x"}',
    '{"type":"exit","status":0,"stderr":"fine"}',
    '{"type":["turn.completed"]}',
    '{"type":"thread.started","thread_id":["x"]}',
    '{"type":"item.completed","item":{"id":[1],"type":"command_execution","command":"true"}}',
    '{"type":"item.started","item":7}',
    '{"type":"item.completed","item":{"id":"a","type":"command_execution","exit_code":"x"}}',
    '{"type":"item.completed","item":{"id":"c","type":"web_search","query":1e999}}',
    '{"type":"item.completed","item":{"id":"b","type":"web_search","result":' + "[" * 80 + "]" * 80 + "}}",
)

OUTPUTS = {
    "fifo": ("mkdir outputs; mkfifo outputs/x", "'/workspace/outputs/x' is a FIFO: only files and directories"),
    "answer-fifo": ("mkdir outputs; mkfifo outputs/answer.json", "'/workspace/outputs/answer.json' is a FIFO"),
    "socket": (
        "mkdir outputs; python3 -c 'import socket; socket.socket(1).bind(\"outputs/s\")'",
        "'/workspace/outputs/s' is a socket",
    ),
    "link": ("ln -s /usr outputs", "/workspace/outputs is a symbolic link, not a directory"),
    "file": ("echo >outputs", "/workspace/outputs is a file, not a directory"),
    "large": (
        "mkdir outputs; truncate -s 900M outputs/big",
        "'/workspace/outputs/big' has 943718400 bytes; at most 209715200 are kept",
    ),
    "many": ("mkdir outputs; cd outputs; seq 5000 | xargs touch", "/workspace/outputs holds more than 4096 entries"),
    "name": ("mkdir outputs; touch $'outputs/\\xff'", "the name is not UTF-8"),
}
"""Outputs that are rejected, and what the row says about them."""

LONG_NAMES = """import os
for part in ["outputs"] + [chr(0x1F600) * 63] * 62: os.mkdir(part); os.chdir(part)
for number in range(300): open(chr(0x1F600) * 62 + str(number), "w").close()"""
NOTHING = {
    "closed": "mkdir outputs; chmod 000 outputs . ..; true",
    "answer-folder": "mkdir -p outputs/answer.json",
    "answer-link": "mkdir outputs; ln -s /etc/passwd outputs/answer.json",
    "long-names": f"python3 -c '{LONG_NAMES}'",
    "all-gone": "rm -rf /workspace/* ~/* ~/.[a-z]* /tmp/* 2>/dev/null; true",
}
"""What leaves no answer, and spoils nothing else."""


def rows(project: Project) -> dict[tuple[str, str], dict[str, object]]:
    return {(row["harness"], row["task"]): row for row in project.records}


def exported_rewards(project: Project) -> dict[str, list[object]]:
    command = [sys.executable, "-m", "pytest_core_rollouts", "export", "--format", "groups", str(project.results[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    groups = [json.loads(line) for line in done.stdout.splitlines()]
    return {f"{group['task']}": [sample["reward"] for sample in group["samples"]] for group in groups}


def test_outputs_that_can_not_be_captured_earn_0(project: Project) -> None:
    """The oracle's script is an agent that does anything."""
    tricks = {
        **{name: command for name, (command, _) in OUTPUTS.items()},
        **NOTHING,
        "deep": 'python3 -c \'import os\nfor i in range(300): os.mkdir("d"); os.chdir("d")\'; sleep 20',
    }
    for name, command in {**tricks, "honest": RIGHT}.items():
        project.write(str(project.task(name) / "solution" / "solve.sh"), command)
    result = project.run(
        *("tasks", "--core", "embedded", "--harness", "oracle", "--rollout-concurrency", "4"),
        *("--rollout-gate", "mean>=0.05", "--rollout-gate", "pass@1>=0.5"),
    )
    found = {task: row for (_, task), row in rows(project).items()}
    assert {task: (row["reward"], row["attempt"]) for task, row in found.items()} == {
        **dict.fromkeys(tricks, (0.0, 1)),
        "honest": (1.0, 1),
    }, text_of(result)
    for name, (_, why) in OUTPUTS.items():
        assert found[name]["status"] == "failed"
        assert str(found[name]["error"]).startswith("the Turn failed: outputs_rejected: The outputs were rejected: ")
        assert why in str(found[name]["error"])
    assert {found[name]["status"] for name in NOTHING} == {"completed"}
    assert str(found["deep"]["error"]).startswith("the Turn failed: sandbox_limit_exceeded: ")
    mean = f"{1 / (len(tricks) + 1):.3f}"
    lines = [" ".join(line.split()) for line in result.outlines]  # the verdicts are aligned
    assert f"gate mean>=0.05: passed: {mean} >= 0.05" in lines
    assert f"gate pass@1>=0.5: failed: {mean} < 0.5" in lines
    assert exported_rewards(project) == {**{task: [0.0] for task in tricks}, "honest": [1.0]}


@needs_codex
def test_an_agent_that_ends_its_own_program_earns_0(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an agent can do to the program that runs it, to the forwarder next to it, and to what it prints."""
    url = "http://127.0.0.1:48080/v1/responses"
    post = f"import urllib.request as r\ntry: r.urlopen('{url}', b'{{}}', 9)\nexcept OSError: pass"
    flood = (
        "import socket, time\ns = [socket.create_connection(('127.0.0.1', 48080)) for _ in range(900)]\ntime.sleep(60)"
    )
    tricks = {
        "kill-all": ("kill -9 -1", "agent_killed"),
        "kill": (f"{CODEX}; kill -9 $pid; sleep 9", "agent_killed"),
        "terminate": (f"{CODEX}; kill -TERM $pid; sleep 9", "agent_killed"),
        "by-hand": (f'python3 -c "{post}"; {CODEX}; kill -ABRT $pid; sleep 9', "agent_killed"),
        "forge": (f"{CODEX}; cat >/proc/$pid/fd/1 <<'END'\n" + "\n".join(FORGED) + "\nEND", None),
        "forwarder": (f"{FORWARDER}; kill -9 $pid; sleep 9", "agent_killed"),
        "connections": (f'python3 -c "{flood}" & sleep 2', None),
        "home": ("rm -rf ~/.codex ~/* /workspace/*; chmod 000 ~", None),
        "forge-kill": (f"{CODEX}; echo '{FORGED[1]}' >/proc/$pid/fd/1; kill -9 $pid; sleep 9", "agent_killed"),
    }
    commands = {**{name: command for name, (command, _) in tricks.items()}, "honest": RIGHT}
    for name in commands:
        project.task(name)
    monkeypatch.setenv("MODEL_API_KEY", KEY)

    def script(ask: Ask) -> Reply:
        [name] = [name for name in commands if f"Do {name}." in ask.text] or ["honest"]
        return Shell(commands[name]) if ask.step == 0 else Say("Done.")

    with ScriptedModel(script) as model:
        result = project.run(
            *(
                "tasks",
                "--core",
                "embedded",
                "--harness",
                "codex",
                "--model",
                "m",
                "--model-base-url",
                model.url + "/v1",
            ),
            *("--rollout-gate", "mean>=0.1", "--rollout-concurrency", "4"),
        )
    found = {task: row for (_, task), row in rows(project).items()}
    assert {task: (row["reward"], row["attempt"]) for task, row in found.items()} == {
        **dict.fromkeys(tricks, (0.0, 1)),
        "honest": (1.0, 1),
    }, text_of(result)
    codes = {task: str(row["error"]).split(": ")[1] if row["error"] else None for task, row in found.items()}
    assert codes == {**{task: code for task, (_, code) in tricks.items()}, "honest": None}
    skipped = f"{len(FORGED)} events of the agent program skipped as malformed; the first: {FORGED[0]} ("
    assert skipped in str(found["forge"]["notes"])
    assert f"gate mean>=0.1: passed: {1 / len(commands):.3f} >= 0.1" in text_of(result)
    assert exported_rewards(project) == {**{task: [0.0] for task in tricks}, "honest": [1.0]}


@needs_codex
def test_no_agent_can_stop_the_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two have their model refuse the key, after a request that they made by hand; one claims to have spent all tokens.

    The honest one, which runs last, is not stopped by them.
    """
    for name in ("a", "b", "claims", "honest"):
        project.task(name)
    monkeypatch.setenv("MODEL_API_KEY", KEY)
    url = "http://127.0.0.1:48080/v1/responses"
    usage = '{"type":"turn.completed","usage":{"input_tokens":4000000000000,"output_tokens":1}}'
    claim = f"while sleep 0.02; do echo '{usage}'; done"
    claims = f"{CODEX}; cat >c <<'END'\n{claim}\nEND\nsetsid bash c >/proc/$pid/fd/1 2>/proc/$pid/fd/2 </dev/null &"

    def script(ask: Ask) -> Reply:
        if "Do honest." in ask.text:
            return Shell(RIGHT) if ask.step == 0 else Say("Done.")
        if "Do claims." in ask.text:
            return Shell(claims) if ask.step == 0 else Say("Done.")
        by_hand = f"python3 -c \"import urllib.request as r; r.urlopen('{url}', b'{{}}', 9)\""
        return Shell(by_hand) if ask.step == 0 and ask.body.get("tools") else Fail(401)

    with ScriptedModel(script) as model:
        options = ("--core", "embedded", "--harness", "codex", "--model", "m", "--model-base-url", model.url + "/v1")
        limits = ("--rollout-concurrency", "1", "--rollout-max-tokens", "1000000")
        result = project.run("tasks", *options, *limits)
    assert result.ret == 1, text_of(result)
    found = {task: row for (_, task), row in rows(project).items()}
    rewards = {task: row["reward"] for task, row in found.items()}
    assert rewards == {"a": None, "b": None, "claims": 0.0, "honest": 1.0}, text_of(result)
    assert found["claims"]["usage"] == found["honest"]["usage"] != None  # noqa: E711
    assert "authentication_error" in str(found["a"]["error"])
