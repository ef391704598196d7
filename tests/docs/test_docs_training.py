"""Every command and program in docs/training.md runs as it is, and every field that it names is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.training.captures import exchanges
from tests.support.agents import needs_codex
from tests.support.fake_core import FakeCore, Script

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "training.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
REAL = ("--core embedded", "--agent codex")
"""Parts of commands that need the codex program."""


def blocks(language: str) -> list[str]:
    return [block for name, block in BLOCKS if name == language]


def commands(*, real: bool) -> list[str]:
    lines = [line for block in blocks("") for line in block.splitlines()]
    captured = [line for line in lines if any(mark in line for mark in (*REAL, "--capture"))]
    return captured if real else [line for line in lines if line not in captured]


class Shell:
    """A folder with a task, the examples, and a Core whose agent solves every other sample."""

    def __init__(self, folder: Path, core: FakeCore) -> None:
        self.folder = folder
        (folder / "examples").symlink_to(ROOT / "examples")
        task = folder / "tasks" / "riddle-north"
        task.mkdir(parents=True)
        (task / "instruction.md").write_text("This is riddle-north. Write /workspace/outputs/answer.json.\n")
        (task / "expected.json").write_text('{"answer": "coral"}')
        (folder / "pytest.ini").write_text("[pytest]\n")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "MODEL_", "PYTEST_"))}
        self.env = {
            **kept,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OPENAI_BASE_URL": core.base_url,
            "OPENAI_API_KEY": core.api_key,
            "MODEL_API_KEY": "model-key-0123456789",
        }

    def run(self, command: str, **replaced: str) -> str:
        """Run a command. Returns what it printed."""
        for old, new in replaced.items():
            command = command.replace(old, new)
        return self._run(["bash", "-c", command], command)

    def python(self, program: str) -> str:
        return self._run([sys.executable, "-c", program], program)

    def lines(self, file: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / file).read_bytes().splitlines()]

    def _run(self, argv: list[str], what: str) -> str:
        done = subprocess.run(argv, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{what}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    def script(body: Mapping[str, Any]) -> Script:
        even = int(body["metadata"]["sample"]) % 2 == 0
        message = {
            "id": "i",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Done."}],
        }
        return Script(answer=b'{"answer": "%s"}' % (b"coral" if even else b"dusk"), items=[message])

    with FakeCore(script=script) as core:
        yield Shell(tmp_path, core)


def test_commands_that_need_no_agent_program(shell: Shell) -> None:
    check_commands_without_an_agent_program(shell)


def check_commands_without_an_agent_program(shell: Shell) -> None:
    [loop, collect, groups, batch, messages] = commands(real=False)
    engine = blocks("python")[0]
    printed = shell.run(loop, **{"grpo_bandit.py": "grpo_bandit.py --agent toy --steps 2"})
    assert "runs/grpo_bandit.jsonl" in printed
    shell.run(collect)
    assert shell.python(engine).count("\n") == 24
    assert blocks("text")[1] == shell.run(groups)
    assert [(group["labels"], group["mean"], group["used"]) for group in shell.lines("groups.jsonl")] == [
        ({"policy": str(version)}, 0.5, 8) for version in range(4)
    ]
    shell.run(batch)
    [group] = shell.lines("batch.jsonl")
    assert {sample["advantage"] for sample in group["samples"]} == {0.5, -0.5}
    shell.run(messages)
    assert len(shell.lines("messages.jsonl")) == 32

    check_fields(shell)


def check_fields(shell: Shell) -> None:
    [group, *_], [conversation, *_] = shell.lines("groups.jsonl"), shell.lines("messages.jsonl")
    assert fields("group") == list(group)
    assert fields("sample") == [*group["samples"][0], "metrics", "exchanges"]
    assert fields("conversation") == [*list(conversation)[:-1], "metrics", "messages"]
    named = re.findall(r"`(\w+)`", next(line for line in TEXT.splitlines() if line.startswith("| `messages`")))
    assert named[1:] == list(conversation["messages"][0])


def fields(what: str) -> list[str]:
    """Return the fields in the table of a group, a sample, ..."""
    table = TEXT.partition(f"| field of a{'n' if what[0] == 'e' else ''} {what} |")[2].partition("\n\n")[0]
    return [field for row in table.splitlines()[2:] for field in re.findall(r"`(\w+)`", row.split("|")[1])]


@needs_codex
@pytest.mark.slow
def test_the_page_works_from_top_to_bottom_in_one_shell(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    from policy_server import Policy, PolicyServer

    check_commands_without_an_agent_program(shell)
    collect, tokens, loop, tokens_of_loop, flat = commands(real=True)
    shell.env.pop("OPENAI_BASE_URL")
    policy = Policy(["riddle-north"], ["coral", "dusk"])
    with PolicyServer(policy, shell.env["MODEL_API_KEY"]) as server:
        shell.run(collect, **{"http://127.0.0.1:9000": server.base_url.partition("/rollouts")[0]})
    printed = shell.run(tokens)
    assert printed == "exported 1 group, 4 samples\n"
    [group] = shell.lines("tokens.jsonl")
    assert {sample["rollout_id"] for sample in group["samples"]} == set(policy.sampled) == set(server.requests)
    assert blocks("text")[-1] == shell.run(flat)
    [sequence, *_] = shell.lines("sequences.jsonl")
    assert fields("sequence") == [*sequence, "metrics"]
    assert (sequence["loss_mask"], sequence["sequences"]) == ([0, 1], 2)
    _, embedded, in_a_loop = blocks("python")[:3]
    first = group["samples"][0]["exchanges"][0]
    assert fields("exchange") == list(first)
    assert json.loads(first["request"])["enable_response_messages"] is True
    for sample in group["samples"]:
        chosen = policy.sampled[sample["rollout_id"]]
        assert [one["token_ids"] for one in sample["exchanges"]] == [[policy.actions.index(chosen.action)], [2]]
        kept = exchanges(shell.folder / "captures", sample["rollout_id"], None)
        assert list(kept) == [], "of another Session"
    with PolicyServer(Policy(["riddle-north"], ["coral", "dusk"]), shell.env["MODEL_API_KEY"]) as server:
        address = server.base_url.partition("/rollouts")[0]
        assert shell.python(embedded.replace("http://127.0.0.1:9000", address)).startswith("riddle-north (")
        assert shell.python(in_a_loop.replace("http://127.0.0.1:9000", address)).count(" [0, 1] [0.0, ") == 4
    assert {path.suffix for path in (shell.folder / "captures").iterdir()} == {".jsonl"}
    shell.run(loop)
    shell.run(tokens_of_loop)
    assert [group["labels"] for group in shell.lines("tokens.jsonl")] == [{"policy": str(n // 2)} for n in range(4)]
