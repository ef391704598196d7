"""Trajectories in the shapes that harnesses give, and rows of a run that has every outcome."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.records.rows import append, count_planned

AGENTS = (("codex", "gpt-x"), ("claude_sdk", "default"))
TASKS = (
    "failed-logins",
    "inventory-bug",
    "orders-json",
    "salaries-sqlite",
    "sales-by-region",
    "sql/joins",
    "sql/windows",
)

HOSTILE = (
    '<script>window.pwned = 1</script><img src=x onerror="window.pwned = 2">',
    "\x1b[31mred\x1b[0m and \x1b[1;32mgreen\x1b[0m \x1b]8;;https://example.com\x07link\x1b]8;;\x07 \x1b[2J\x1b[Hhome",
    "access \u202elevel\u2066 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "nul \x00 bell \x07 soft\u00adhyphen zero\u200bwidth \u2028 line",
    "lone \ud835 and \udc00 surrogates",
    "</script><!--<script>",
    "{{ template }} {% raw %} ${js} `tick`",
)
LONG_LINE = "x" * (2 << 20)

PATCH = """*** Begin Patch
*** Update File: report.py
@@ def total(rows):
-    return sum(row.price for row in rows)
+    return sum(row.price * row.count for row in rows)
*** End Patch"""
UNIFIED = """diff --git a/report.py b/report.py
--- a/report.py
+++ b/report.py
@@ -3,4 +3,4 @@
 def total(rows):
-    return sum(row.price for row in rows)
+    return sum(row.price * row.count for row in rows)
"""


def item(kind: str, number: int, **fields: Any) -> dict[str, Any]:
    return {"id": f"item_{number}", "type": kind, "turn_id": "turn_1", "status": "completed", **fields}


def user(number: int, text: str) -> dict[str, Any]:
    return item("message", number, role="user", content=[{"type": "input_text", "text": text}], phase=None)


def agent_message(number: int, text: str, phase: str = "commentary") -> dict[str, Any]:
    return item("message", number, role="assistant", content=[{"type": "output_text", "text": text}], phase=phase)


def command(number: int, text: str, output: str, code: int = 0, ms: int = 210) -> dict[str, Any]:
    status = "completed" if code == 0 else "failed"
    fields = {"command": text, "cwd": "/workspace", "duration_ms": ms, "exit_code": code, "output": output}
    return item("command_execution", number, **fields) | {"status": status}


def thought(number: int, text: str) -> dict[str, Any]:
    return item("reasoning", number, summary=[{"type": "summary_text", "text": text}])


def conversation(task: str, seed: int = 0) -> list[dict[str, Any]]:
    """A plausible piece of work, with every common type of Item."""
    log = "\n".join(
        f"May 1{n % 9} 0{n % 10}:12:44 gw sshd[{2000 + n}]: Failed password for root" for n in range(40 + seed)
    )
    return [
        user(1, f"Solve **{task}**. `/workspace/data.csv` holds the rows.\n\nWrite `/workspace/outputs/answer.json`."),
        thought(2, "I should look at the data before I decide how to count.\nThe README may explain the columns."),
        command(
            3,
            "/bin/bash -lc 'ls -la && head -50 auth.log'",
            f"total 12\n-rw-r--r-- 1 agent agent 812 data.csv\n{log}\n",
        ),
        agent_message(
            4,
            "The log has **repeated** lines. I'll run:\n\n```python\nimport csv\nprint('rows')\n```\n\nThen check it.",
        ),
        command(5, f"apply_patch <<'EOF'\n{PATCH}\nEOF", "Success. Updated the following files:\nM report.py\n", ms=34),
        command(
            6,
            "python3 report.py",
            "Traceback (most recent call last):\n  File \"report.py\", line 4\nKeyError: \x1b[31m'count'\x1b[0m\n",
            1,
        ),
        item(
            "function_call",
            7,
            call_id="c1",
            name="Edit",
            arguments={
                "file_path": "/workspace/report.py",
                "old_string": "row['count']\nsame",
                "new_string": "int(row['qty'])\nsame",
            },
        ),
        item("function_call_output", 8, call_id="c1", output="The file was updated.", error=None),
        item(
            "mcp_call",
            9,
            server_label="docs",
            name="search",
            arguments={"query": "sqlite window functions"},
            output=None,
            error={"code": "timeout", "message": "no answer in 30 s"},
        )
        | {"status": "failed"},
        item("web_search_call", 10, action={"type": "search", "query": "RFC 5952"}),
        command(11, "git diff", UNIFIED),
        command(12, "python3 report.py > outputs/answer.json", "", ms=1840),
        agent_message(13, "The answer is in `/workspace/outputs/answer.json`.", "final_answer"),
    ]


def row(task: str, sample: int, agent: int, result: float | str, **fields: Any) -> dict[str, Any]:
    """A row's fields; `result` is a reward or a status that has none."""
    harness, model = AGENTS[agent]
    reward, status = (result, "completed") if isinstance(result, float) else (0.0, result)
    if result in ("error", "cancelled"):
        reward = None  # type: ignore[assignment]
    known: dict[str, Any] = {
        "rollout_id": f"20261129T120000Z-1f0c.{task.replace('/', '-')}.{harness}-{model}.{sample}",
        "task": task,
        "harness": harness,
        "model": model,
        "sample": sample,
        "session_id": f"sess_{task}_{sample}",
        "status": status,
        "reward": reward,
        "duration_s": 12.5 + sample,
        "run_id": "20261129T120000Z-1f0c",
        "group_id": f"20261129T120000Z-1f0c.{task}.{harness}",
        "agent": {"name": None, "digest": f"{agent}" * 64},
        "usage": {
            "input_tokens": 18200 + sample,
            "input_tokens_details": {"cached_tokens": 9000},
            "output_tokens": 940,
            "output_tokens_details": {"reasoning_tokens": 310},
            "total_tokens": 19140 + sample,
        }
        if agent == 0
        else None,
        "items": conversation(task, sample),
        "attempt": 1,
        "started_at": "2026-11-29T12:00:01.250+00:00",
        "timings": {"create": 0.03, "prepare": 1.2, "turn": 11.1, "fetch": 0.1},
        "input_digest": f"in-{task}",
        "grading_digest": f"gr-{task}",
        "settings": {
            "timeout": 900.0,
            "network": {"access": "disabled"},
            "versions": {"pytest-core-rollouts": "0.1.0"},
        },
    }
    return known | _told(result) | fields


def _told(result: float | str) -> dict[str, Any]:
    if result == 1.0:
        return {"answer": {"total": 324, "top": "203.0.113.77"}}
    if isinstance(result, float):
        reasons = [
            {"path": "total", "expected": 324, "answered": 342},
            {"path": 'attempts["2001:db8::1f"]', "expected": 10, "answered": "(missing)"},
            {"path": "names", "expected": ["Ada", "Grace", "Edsger"], "answered": ["Ada", "Grace", "Donald", "Edsger"]},
        ]
        return {"answer": {"total": 342, "names": ["Ada"]}, "reasons": reasons}
    if result == "error":
        return {
            "error": "create: POST /agents/sessions: 503 execution_unavailable: no sandbox is free (req_12ab)",
            "items": None,
        }
    errors = {
        "timeout": None,
        "failed": "the Turn failed: context_length_exceeded: the conversation is too long",
        "cancelled": "the Turn was cancelled by someone else",
    }
    return {"error": errors[result]}


def many_outcomes(samples: int = 4, seed: int = 3) -> list[RolloutRecord]:
    """Seven tasks, two agents, every outcome."""
    draw = random.Random(seed)
    results: Sequence[float | str] = (1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.4, "timeout", "failed", "error", "cancelled")
    plan = count_planned((str(agent), task) for agent in (0, 1) for task in TASKS for _ in range(samples))
    easy = {"failed-logins": 1.0, "sql/windows": 0.0}
    rows = []
    for task in TASKS:
        for agent in (0, 1):
            for sample in range(samples):
                if task == "orders-json" and sample == 3:
                    continue  # never ran
                fields = row(task, sample, agent, easy.get(task, draw.choice(results)))
                rows.append(RolloutRecord(**fields, planned=plan[str(agent), task]))
    return rows


SIXTEEN = (
    *("finance/rebase-conflict", "finance/sitemap", "git/fx-rates", "git/rotate", "git/unicode-names", "logs/dates"),
    *("logs/json-lines", "logs/windows", "parsing/count-errors", "parsing/invoice-totals", "parsing/top-customers"),
    *("sql/csv-quotes", "sql/joins", "sql/ledger", "web/blame-owner", "web/broken-links"),
)


def sixteen_tasks(samples: int = 4, seed: int = 3, agents: Sequence[tuple[str, str]] = AGENTS) -> list[RolloutRecord]:
    """Sixteen tasks of six areas, from hard to easy, with tags; `web/blame-owner` is expected to fail."""
    draw = random.Random(seed)
    plan = count_planned((str(agent), task) for agent in agents for task in SIXTEEN for _ in range(samples))
    rows = []
    for at, task in enumerate(SIXTEEN):
        hardness = (at * 7 % 16) / 15
        for harness, model in agents:
            for sample in range(samples):
                rows.append(_drawn(draw, task, sample, (harness, model), hardness, plan[str((harness, model)), task]))
    return rows


def _drawn(
    draw: random.Random, task: str, sample: int, agent: tuple[str, str], hardness: float, planned: Mapping[str, int]
) -> RolloutRecord:
    result: float | str = 1.0
    if draw.random() < hardness:
        kinds: Sequence[float | str] = (0.0, "timeout", "failed", "error")
        result = draw.choices(kinds, (72, 14, 5, 9))[0]
    fields = row(
        task, sample, 0, result, planned=planned, tags=[task.split("/")[0], "slow" if hardness > 0.7 else "quick"]
    )
    harness, model = agent
    fields["rollout_id"] = f"20261129T120000Z-1f0c.{task.replace('/', '-')}.{harness}-{model}.{sample}"
    fields |= {"harness": harness, "model": model, "agent": {"name": None, "digest": f"{harness}/{model}"}}
    fields |= {"group_id": f"{task}.{harness}.{model}", "duration_s": round(draw.lognormvariate(3, 0.6), 1)}
    if task == "web/blame-owner":
        fields["settings"] = fields["settings"] | {"xfail": "too hard"}
    if result == 0.0:
        answered = draw.choice((342, 342, 300))
        fields["answer"] = {"total": answered, "names": ["Ada"]}
        mistakes = (
            [{"path": "total", "expected": 324, "answered": answered}],
            [{"path": "names", "expected": ["Ada", "Grace"], "answered": "(missing)"}],
            fields["reasons"],
        )
        fields["reasons"] = draw.choices(mistakes, (5, 2, 1))[0]
    return RolloutRecord(**fields)


def many_agents() -> list[RolloutRecord]:
    """The same tasks by six agents, whose names are long."""
    models = ("claude-sonnet-5", "gpt-5.5-codex-mini", "qwen3-coder-480b")
    return sixteen_tasks(2, agents=[(harness, model) for harness in ("claude_sdk", "codex") for model in models])


def write(path: Path, records: Sequence[RolloutRecord]) -> Path:
    for record in records:
        append(path, record)
    return path
