"""`check [TASK...]` finds faults in tasks before an agent spends tokens on them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_core_rollouts.checking import runs as check_runs
from pytest_core_rollouts.checking.checks import Finding, TaskChecks, apply_silence, merge_hook_faults
from pytest_core_rollouts.checking.grading_checks import KnownGrades
from pytest_core_rollouts.embedded.hidden import hide
from pytest_core_rollouts.tasks.task_settings import FINDINGS
from pytest_core_rollouts.text import escaped, one_line

if TYPE_CHECKING:
    from pytest_core_rollouts.checking.collecting import Collected

UNUSABLE: Final = 2
"""The exit code if nothing could be checked, as in linters."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tasks", metavar="TASK", nargs="*", help="id or path of a task; default: all tasks")
    parser.add_argument(
        "--format", choices=("text", "github"), default="text", help="github: annotations for a GitHub workflow"
    )
    parser.add_argument(
        "--core",
        choices=("embedded", "none"),
        help="embedded: also run each solution twice, and an agent that does nothing; none: only read files. "
        "Default: embedded if it can run here",
    )
    parser.add_argument("--strict", action="store_true", help="treat warnings as errors")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings. Return 0 without findings, 1 with some, 2 if nothing could be checked."""
    from pytest_core_rollouts.checking.collecting import collect_tasks

    collected = collect_tasks(arguments.tasks)
    if collected.unusable is not None:
        print("\n".join(map(escaped, f"ERROR: {collected.unusable}".split("\n"))), file=sys.stderr)
        return UNUSABLE
    notes: list[str] = []
    show_again = hide(collected.places.all)  # graders run code in sandboxes too
    try:
        findings = merge_hook_faults(_findings(collected, arguments.core, notes))
    except _NoCore as error:
        print(f"ERROR: --core embedded: {error}", file=sys.stderr)
        return UNUSABLE
    finally:
        show_again()
    render = _github if arguments.format == "github" else _text
    for finding in sorted(findings, key=lambda one: (one.task_id, str(one.path), one.line, one.code)):
        print(_encodable(render(finding)))
    errors = sum(not finding.is_warning for finding in findings)
    print(_summary(len(collected.tasks), errors, len(findings) - errors, notes), file=sys.stderr)
    return 1 if errors or (arguments.strict and findings) else 0


# ---- checking


class _NoCore(Exception):
    """The user passed --core embedded, but it can't run here."""


def _findings(collected: Collected, core: str | None, notes: list[str]) -> Iterator[Finding]:
    yield from collected.faults
    by_task: dict[str, list[Finding]] = {}
    checked: dict[str, frozenset[str]] = {}
    grades = KnownGrades(collected.grading)
    for task in collected.tasks.values():
        custom = not grades.uses_builtin_grading(task)
        checks = TaskChecks(task, grades.grade_now, custom=custom, env_listed=collected.env_listed)
        by_task[task.id] = list(checks.findings())
        checked[task.id] = checks.codes - check_runs.CODES
    runnable = [task for task in collected.tasks.values() if check_runs.can_run(task)]
    runnable = [task for task in runnable if all(finding.code != "unfinished" for finding in by_task[task.id])]
    if core != "none" and runnable:
        found = {task.id: {each.code for each in by_task[task.id]} - task.silence.keys() for task in runnable}
        run = partial(check_runs.run_findings, runnable, grades, collected.places, found)
        for finding in _embedded(run, core, notes):
            by_task[finding.task_id].append(finding)
        for task in runnable if not notes else ():
            checked[task.id] = frozenset(FINDINGS)
        if len(runnable) < len(collected.tasks):
            notes.append(f"{len(collected.tasks) - len(runnable)} not run on the embedded Core")
    for task in collected.tasks.values():
        yield from apply_silence(task, by_task[task.id], checked[task.id])


def _embedded(run: Callable[[], Iterator[Finding]], core: str | None, notes: list[str]) -> Iterable[Finding]:
    from pytest_core_rollouts.engine.core_access import CoreError

    try:
        return list(run())
    except CoreError as error:
        problem = str(error).removeprefix("--core embedded: ")
        if core == "embedded":
            raise _NoCore(problem) from None
        notes.append(f"nothing was run, because the embedded Core can't: {problem.splitlines()[0]}")
        return ()


# ---- printing


def _text(finding: Finding) -> str:
    place = f"{_relative(finding.path)}:{finding.line}" if finding.path is not None else finding.task_id
    kind = "warning" if finding.is_warning else "error"
    return f"{one_line(place)}: {kind}: {one_line(finding.message)} [{finding.code}]"


def _github(finding: Finding) -> str:
    """Return a workflow command, which GitHub shows next to the line."""
    kind = "warning" if finding.is_warning else "error"
    where = f"file={_property(_relative(finding.path))},line={finding.line}," if finding.path is not None else ""
    title = _property(f"{finding.task_id}: {finding.code}")
    return f"::{kind} {where}title={title}::{_data(finding.message)}"


def _data(text: str) -> str:
    return "%0A".join(escaped(line) for line in text.replace("%", "%25").splitlines())


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _relative(path: Path) -> str:
    here = Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)


def _encodable(text: str) -> str:
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _summary(tasks: int, errors: int, warnings: int, notes: Sequence[str]) -> str:
    counted = f"{tasks} task{'s' if tasks != 1 else ''} checked"
    found = [
        f"{number} {what}{'s' if number != 1 else ''}" for number, what in ((errors, "error"), (warnings, "warning"))
    ]
    return "; ".join([f"{counted}: {', '.join(found)}", *notes])
