"""Runs together with other plugins, all of them installed. Needs a package index once; then a cache is used."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.conftest import RIGHT, WRONG, Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Script
from tests.support.running import rows

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
PLUGINS = (
    "pytest-timeout",
    "pytest-rerunfailures",
    "pytest-randomly",
    "pytest-repeat",
    "pytest-html",
    "pytest-cov",
    "pytest-asyncio",
    "anyio",
    "pytest-sugar",
)
NEEDED = ("pytest>=8.3", "pytest-xdist>=3.6", "httpx>=0.27,<1", "sniffio>=1.3", "pyyaml>=6.0", *PLUGINS)
QUIET = ("no:sugar", "no:randomly", "no:cacheprovider")
"""Plugins that change every run's output or order, unless a test is about them."""


@pytest.fixture(scope="session")
def python() -> Path:
    """A Python with all the plugins, kept between runs in the user's cache."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256("\n".join(NEEDED).encode()).hexdigest()[:8]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "pytest-core-rollouts" / f"compat-{version}-{digest}"
    found = folder / "bin" / "python"
    done = folder / "complete"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=120)
        install = [str(found), "-m", "pip", "install", "--quiet", *NEEDED]
        if subprocess.run(install, timeout=600, check=False).returncode:
            pytest.skip(f"the plugins can't be installed: {' '.join(install)}")
        done.touch()
    return found


class WithPlugins:
    """Tasks `right` (2 s), `wrong`, `fixed` (a fault, then right) and two unit tests, with every plugin there is."""

    def __init__(self, project: Project, core: FakeCore, python: Path) -> None:
        self.project = project
        self.core = core
        self.python = python
        for name in ("right", "wrong", "fixed"):
            project.task(name)
        project.unit_tests()
        self.started: Counter[str] = Counter()
        core.script = self._script

    def _script(self, body: dict[str, dict[str, str]]) -> Script:
        task = body["metadata"]["task"]
        self.started[task] += 1
        if task == "fixed" and self.started[task] == 1:
            return Script(turn_status="failed")
        return Script(answer=WRONG if task == "wrong" else RIGHT, turn_seconds=2.0 if task == "right" else 0.1)

    def run(self, *args: str, without: tuple[str, ...] = QUIET) -> pytest.RunResult:
        disabled = [word for name in without for word in ("-p", name)]
        command = [str(self.python), "-m", "pytest", "-p", "pytest_core_rollouts.plugin", *disabled]
        done = subprocess.run(
            [*command, "tests", "tasks", *args],
            cwd=self.project.path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "INTERNALERROR" not in done.stdout + done.stderr, done.stdout + done.stderr
        return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0.0)


@pytest.fixture
def plugins(project: Project, core: FakeCore, python: Path) -> WithPlugins:
    return WithPlugins(project, core, python)


WAYS = [(), ("-n", "2"), ("-n", "2", "--rollout-concurrency", "3")]
BASE = {"passed": 4, "failed": 1}
"""Where our own second attempt fixes the fault."""


@pytest.mark.parametrize("way", WAYS, ids=len)
@pytest.mark.parametrize("limit", ["--timeout=1", "-otimeout=1"])
def test_the_limit_of_pytest_timeout_does_not_apply_to_rollouts(
    plugins: WithPlugins, limit: str, way: tuple[str, ...]
) -> None:
    result = plugins.run(limit, *way)
    assert outcomes(result) == BASE, text_of(result)
    assert "Timeout" not in text_of(result)


@pytest.mark.parametrize("way", WAYS, ids=len)
def test_pytest_rerunfailures_runs_infrastructure_errors_again(plugins: WithPlugins, way: tuple[str, ...]) -> None:
    result = plugins.run("--reruns", "2", "--rollout-retries", "0", *way)
    assert {key: count for key, count in outcomes(result).items() if key != "rerun"} == BASE, text_of(result)
    assert plugins.started == {"right": 1, "wrong": 1, "fixed": 2}
    written = Counter((row["task"], row["status"], row["attempt"]) for row in plugins.project.records)
    assert written == {
        ("right", "completed", 1): 1,
        ("wrong", "completed", 1): 1,
        ("fixed", "failed", 1): 1,
        ("fixed", "completed", 2): 1,
    }
    assert "3 rollouts: 3 tasks, 1 sample each" in text_of(result)


@pytest.mark.parametrize("way", WAYS, ids=len)
def test_pytest_rerunfailures_does_not_run_wrong_answers_again(plugins: WithPlugins, way: tuple[str, ...]) -> None:
    """Each rerun is the row once more, unless wrong answers are left out."""
    rerun = plugins.run("--reruns", "2", *way)
    assert outcomes(rerun) == {**BASE, "rerun": 2}, text_of(rerun)
    left_out = plugins.run("--reruns", "2", "--rerun-except", "WrongAnswer", *way)
    assert outcomes(left_out) == BASE, text_of(left_out)
    assert Counter(row["task"] for row in plugins.project.records) == {"right": 2, "wrong": 2, "fixed": 2}
    assert plugins.started["wrong"] == 2, "once a run"


DIES = """
import os, time
from pathlib import Path

def die():
    flag = Path(__file__).with_name("died")
    if "PYTEST_XDIST_WORKER" in os.environ and not flag.exists():
        flag.touch()
        time.sleep(1)  # pytest-rerunfailures has its own connection to its controller
        os._exit(3)

def pytest_runtest_logreport(report):
    if {task!r} in report.nodeid and report.when == "setup":
        die()
"""


@pytest.mark.parametrize("way", WAYS[1:], ids=len)
@pytest.mark.parametrize("dies", ["tasks/right/", "::test_one"])
def test_a_rollout_whose_worker_crashed_runs_again_once_with_pytest_rerunfailures(
    plugins: WithPlugins, way: tuple[str, ...], dies: str
) -> None:
    """pytest-rerunfailures also queues again what killed its worker."""
    plugins.project.write("conftest.py", DIES.format(task=dies))
    result = plugins.run("--reruns", "2", "--only-rerun", "Fault", "--rollout-retries", "0", *way)
    assert (plugins.project.path / "died").exists()
    assert {key: count for key, count in outcomes(result).items() if key != "rerun"} == BASE, text_of(result)
    assert plugins.started == {"right": 1, "wrong": 1, "fixed": 2}


@pytest.mark.parametrize("way", WAYS, ids=len)
def test_rollouts_run_in_random_order_with_pytest_randomly(plugins: WithPlugins, way: tuple[str, ...]) -> None:
    result = plugins.run(*way, without=("no:sugar", "no:cacheprovider"))
    assert outcomes(result) == BASE, text_of(result)
    assert len(rows(plugins.project)) == 3


@pytest.mark.parametrize("way", WAYS, ids=len)
def test_pytest_repeat_repeats_no_rollout(plugins: WithPlugins, way: tuple[str, ...]) -> None:
    result = plugins.run("--count", "3", *way)
    assert outcomes(result) == {"passed": 2 * 3 + 2, "failed": 1}, text_of(result)
    assert len(rows(plugins.project)) == 3


@pytest.mark.parametrize("way", WAYS, ids=len)
def test_pytest_html_and_pytest_cov_work_with_rollouts(plugins: WithPlugins, way: tuple[str, ...]) -> None:
    result = plugins.run("--html=report.html", "--self-contained-html", "--cov=tests", *way)
    assert outcomes(result) == BASE, text_of(result)
    page = (plugins.project.path / "report.html").read_text()
    assert all(f"tasks/{task}/instruction.md" in page for task in ("right", "wrong", "fixed"))
    assert "TOTAL" in text_of(result)


def test_pytest_asyncio_and_anyio_work_with_rollouts(plugins: WithPlugins) -> None:
    marks = "import asyncio\nimport pytest\n\n"
    one = "@pytest.mark.asyncio\nasync def test_asyncio():\n    await asyncio.sleep(0.01)\n\n"
    other = "@pytest.mark.anyio\nasync def test_anyio():\n    await asyncio.sleep(0.01)\n"
    fixture = "@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n\n"
    plugins.project.write("tests/test_async.py", marks + fixture + one + other)
    result = plugins.run("-o", "asyncio_mode=auto")
    assert outcomes(result) == {**BASE, "passed": 6}, text_of(result)


@pytest.mark.parametrize("way", WAYS, ids=len)
def test_pytest_sugar_works_with_rollouts(plugins: WithPlugins, way: tuple[str, ...]) -> None:
    result = plugins.run("--force-sugar", *way, without=("no:randomly", "no:cacheprovider"))
    assert result.ret == 1
    text = text_of(result)
    assert "4 passed" in text
    assert "1 failed" in text
    assert len(rows(plugins.project)) == 3


def test_all_these_plugins_work_together(plugins: WithPlugins) -> None:
    args = ("--timeout=1", "--reruns=1", "--html=r.html", "--cov=tests", "-n", "2", "--rollout-concurrency", "3")
    result = plugins.run(*args, without=("no:sugar",))
    assert {key: count for key, count in outcomes(result).items() if key != "rerun"} == BASE, text_of(result)
    assert plugins.started == {"right": 1, "wrong": 1, "fixed": 2}


THREADS = """
import threading
from pathlib import Path
import pytest

class Watch:
    @pytest.hookimpl({first}=True)
    def pytest_{hook}(self, session):
        names = [thread.name for thread in threading.enumerate()]
        if hasattr(session.config, "workerinput"):
            Path(f"{{session.config.workerinput['workerid']}}-{hook}").write_text(" ".join(names))

def pytest_configure(config):
    config.pluginmanager.register(Watch())
"""


@pytest.mark.parametrize(("hook", "first"), [("sessionstart", "trylast"), ("sessionfinish", "tryfirst")])
def test_no_thread_of_the_plugin_runs_when_coverage_starts_or_stops(
    plugins: WithPlugins, hook: str, first: str
) -> None:
    """In a worker pytest-cov lets coverage measure within coverage, which confuses threads that see it change."""
    plugins.project.write("conftest.py", THREADS.format(hook=hook, first=first))
    plugins.run("--cov=tests", "-n", "2", "--rollout-concurrency", "3")
    found = [path.read_text().split() for path in plugins.project.path.glob(f"gw*-{hook}")]
    assert len(found) == 2
    assert not [name for names in found for name in names if name.startswith("rollouts-")], found
