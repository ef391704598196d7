"""A project without tasks, or a run that does not ask for them, is as it would be without the plugin."""

from __future__ import annotations

import re

import pytest

from tests.integration.conftest import Project, node_ids, outcomes, text_of
from tests.support.fake_core import FakeCore

OURS = ("options.settings", "collecting.collect", "running", "tasks.task", "grading.answers", "rollout", "report")
HEAVY = ("httpx", "yaml", "starlette", "uvicorn", *(f"pytest_core_rollouts.{name}" for name in OURS))
"""What takes long to import; a run that did not ask for rollouts does without."""

TELL_MODULES = f"""
import sys

def pytest_unconfigure():
    print("heavy:", [name for name in {HEAVY!r} if name in sys.modules])
"""

BOOBY_TRAPS = {
    "test_x.py": "raise SystemExit('files/test_x.py was imported')",
    "conftest.py": "raise SystemExit('files/conftest.py was imported')",
    "sub/__init__.py": "raise SystemExit('files/sub was imported')",
    "sub/test_y.py": "raise SystemExit('files/sub/test_y.py was imported')",
}


def printed(result: pytest.RunResult) -> list[str]:
    """What a run prints, without what differs from run to run."""
    return [
        re.sub(r"in [0-9.]+s", "in T", line)
        for line in result.outlines
        if not line.startswith(("plugins:", "rootdir:"))
    ]


@pytest.mark.usefixtures("no_core")
def test_a_project_without_tasks_sees_no_difference(project: Project) -> None:
    project.unit_tests()
    project.write("conftest.py", TELL_MODULES)
    with_plugin = project.run_apart("-p", "no:randomly", "-p", "no:cacheprovider")
    without = project.run_apart("-p", "no:core-rollouts", "-p", "no:cacheprovider")
    assert with_plugin.ret == 0
    assert printed(with_plugin) == printed(without)
    assert "heavy: []" in with_plugin.outlines
    assert not (project.path / "runs").exists()


@pytest.mark.usefixtures("no_core")
def test_a_folder_named_tasks_without_tasks_is_left_to_pytest(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tasks` is a common name for a package."""
    monkeypatch.setenv("OPENAI_BASE_URL", "rubbish")
    project.unit_tests("tasks/test_celery.py")
    for args in ((), (".",), ("tasks",), ("tasks/test_celery.py",)):
        result = project.run(*args)
        assert outcomes(result) == {"passed": 2}
        assert "rollouts:" not in text_of(result)


@pytest.mark.parametrize("args", [(), (".",), ("tests",)], ids=["bare", "dot", "path"])
def test_tasks_that_were_not_requested_are_not_collected(
    project: Project, core: FakeCore, args: tuple[str, ...]
) -> None:
    project.unit_tests()
    project.task("a", files=BOOBY_TRAPS)
    project.task("b/c", files=BOOBY_TRAPS)
    project.write("tasks/half/instruction.md", "Nothing to grade it by.")
    project.write("conftest.py", TELL_MODULES)
    result = project.run_apart(*args)
    assert result.ret == 0, text_of(result)
    assert outcomes(result) == {"passed": 2}
    assert [line for line in result.outlines if line.startswith("rollouts:")] == [
        "rollouts: 3 tasks in tasks, not requested; to run: pytest tasks"
    ]
    assert "heavy: []" in result.outlines
    assert not core.requests
    assert not (project.path / "runs").exists()


def test_no_file_of_a_task_is_imported_when_it_runs(project: Project, core: FakeCore) -> None:
    project.task("a", files=BOOBY_TRAPS)
    result = project.run_apart("tasks")
    assert result.ret == 0, text_of(result)
    assert outcomes(result) == {"passed": 1}
    assert len(core.sessions) == 1


@pytest.mark.usefixtures("no_core")
def test_invalid_settings_do_not_affect_a_run_without_rollouts(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://user:secret@host?x")
    project.unit_tests()
    project.task("broken", expected=[1])
    project.ini(
        "testpaths = tests",
        "rollout_harness = nonsense",
        "rollout_samples = many",
        "rollout_gate = maybe",
        "rollout_agent = missing.yaml",
        "rollout_timeout = 10:00",
    )
    for args in ((), ("tests",)):
        assert outcomes(project.run(*args)) == {"passed": 2}


def test_a_run_that_selects_no_rollout_needs_no_core(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "rubbish")
    monkeypatch.delenv("OPENAI_API_KEY")
    project.unit_tests()
    project.task()
    result = project.run(
        "tests", "tasks", "--harness", "codex", "--model-base-url", "https://m", "--model", "m", "-k", "one"
    )
    assert outcomes(result) == {"passed": 1, "deselected": 2}
    assert result.ret == 0


OWN_OPTIONS = [
    'parser.addoption("--{name}", type=int, default=3)',
    'parser.addoption("--{name}", action="store_true", default=3)',
    'parser.addoption("--{name}", choices=["a", "b"], default=3)',
    'parser.addoption("--{name}", type=lambda text: {{}}[text], default=3)',
    'parser.addoption("--{name}", action="append", nargs=2, default=3)',
]


@pytest.mark.parametrize("own", OWN_OPTIONS, ids=["int", "flag", "choices", "raising", "append"])
@pytest.mark.parametrize("where", ["conftest.py", "tests/conftest.py", "deep/er/conftest.py"])
def test_a_conftest_can_use_every_short_option_name(project: Project, core: FakeCore, own: str, where: str) -> None:
    project.unit_tests("deep/er/test_unit.py")
    project.task()
    adds = [own.format(name=name) for name in ("harness", "model", "samples", "core", "model-protocol")]
    project.write(where, "def pytest_addoption(parser):\n" + "".join(f"    {line}\n" for line in adds))
    project.write("tests/test_there.py", "def test_there(request): pass")
    assert outcomes(project.run("-p", "no:cacheprovider")) == {"passed": 3}
    result = project.run("--rollout-harness", "codex", "--rollout-samples=2", "--rollout-model", "m")
    assert outcomes(result) == {"passed": 2}
    assert {session.body["agent"]["model"] for session in core.sessions.values()} == {"m"}


def test_an_option_of_a_conftest_keeps_its_meaning(project: Project, core: FakeCore) -> None:
    project.write(
        "conftest.py",
        """
def pytest_addoption(parser):
    parser.addoption("--model", type=int)
    parser.addoption("--core", action="store_true")
""",
    )
    project.write("tests/test_own.py", "def test_own(request): assert request.config.getoption('model') == 7")
    result = project.run("--model", "7", "--core", "tests")
    assert outcomes(result) == {"passed": 1}
    assert not core.requests


def test_a_required_option_of_a_conftest_does_not_disable_short_names(project: Project) -> None:
    project.write("conftest.py", 'def pytest_addoption(parser):\n    parser.addoption("--must", required=True)\n')
    project.task()
    result = project.run("--must", "x", "--harness", "codex", "--collect-only", "-q")
    assert node_ids(result) == ["tasks/sum/instruction.md::codex-default-0"]


@pytest.mark.parametrize(
    "args", [("--harness", "codex"), ("--harness=codex",), ("--model", "codex", "--harness", "tasks")]
)
def test_an_option_value_that_is_also_a_folder_hides_no_conftest(project: Project, args: tuple[str, ...]) -> None:
    """pytest's first pass takes an unknown option's value for a path, and would not read the testpaths' conftest."""
    project.write("codex/conftest.py", "")
    project.ini("testpaths = suite")
    project.write("suite/conftest.py", 'def pytest_addoption(parser):\n    parser.addoption("--theirs")\n')
    project.unit_tests("suite/test_unit.py")
    project.task()
    result = project.run_apart(*args, "--theirs=1", "--collect-only", "-q")
    if "tasks" in args:
        assert "unknown harness 'tasks'" in text_of(result)
    else:
        assert node_ids(result) == ["tasks/sum/instruction.md::codex-default-0"], text_of(result)


def test_help_names_every_option_and_ini_key(project: Project) -> None:
    project.task()
    result = project.run("--help")
    assert result.ret == 0
    text = " ".join(text_of(result).split())
    for name in ("--rollout-harness", "Short: --samples", "rollout_tasks (paths)", "rollout_timeout (string)"):
        assert name in text


def test_the_marker_rollout_is_registered(project: Project) -> None:
    assert "@pytest.mark.rollout(task, harness, model, agent, sample): " in text_of(project.run("--markers"))
