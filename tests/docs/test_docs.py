"""The README and the pages of docs/: every command in them is run, or listed here with the reason why not.

docs/core.md, docs/training.md, docs/tasks.md and docs/embedded-core.md have further tests (`test_docs_*.py`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from pytest_core_rollouts.cli import VERBS, main
from pytest_core_rollouts.options.declared import OPTIONS
from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.tasks.strict_yaml import load_yaml
from pytest_core_rollouts.tasks.task_yaml import RULES
from tests.support.fake_core import FakeCore, Script
from tests.support.generators import load_generator

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
README = PAGES[0].read_text(encoding="utf-8")

ELSEWHERE = {
    "training.md": "tests/docs/test_docs_training.py runs it",
    "core.md": "tests/integration/test_docs_core.py runs it",
    "history.md": "tests/cli/test_history.py runs it",
    "openai.md": "tests/integration/test_docs_openai.py runs it",
}
NOT_RUN = {
    "python3 -m venv .venv": "`.ci/run` runs the second one, and a slow test below runs the first",
    ".venv/bin/pytest tasks/failed-logins": "needs a clone and exits with 1; a test below runs it",
    "pip install ": "asks a registry; tests/test_package.py installs a wheel",
    "export OPENAI_BASE_URL=": "names a deployment that does not exist; the tests name a fake Core",
    "read -rs OPENAI_API_KEY": "reads from the keyboard",
    "pytest tasks --core openai": "needs OpenAI's service; integration/test_openai_service.py has a fake one",
    "pytest tasks --core embedded --harness codex": "needs a model server; integration/test_real_agents.py has one",
    "pytest tasks --core embedded --harness ./tiny": "needs a model server; integration/test_harness_files.py has one",
    "python -m pytest_core_rollouts compare skill.jsonl": "needs a run on a model server, too",
    "pytest tasks --core embedded --rollout-agent": "needs a model server, too",
    "--rollout-model-params": "is an option, not a command",
    "python examples/grpo_bandit.py": "needs a clone; test_docs_training.py and tests/examples/ run it",
}
"""Beginnings of commands that are not run, each with the reason."""

FEWER = {"-n 8": "-n 2"}
"""Replacements for machines with few cores."""


@dataclass(frozen=True)
class Block:
    """A fenced block, and the output that the page shows for it: the text block right after it, if there is one."""

    language: str
    text: str
    output: str = ""

    @property
    def commands(self) -> list[str]:
        joined = self.text.replace("\\\n", " ")
        return [line for line in joined.splitlines() if line.strip() and not line.startswith(tuple(NOT_RUN))]


def blocks(text: str) -> list[Block]:
    found = [
        (match.group(1), match.group(2), match.end())
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]
    result = []
    for at, (language, content, end) in enumerate(found):
        following = found[at + 1] if at + 1 < len(found) else None
        is_output = following and following[0] == "text" and text.startswith("\n\n```text\n", end)
        result.append(Block(language, content, following[1] if following and is_output else ""))
    return result


def block_of(page: str, language: str) -> str:
    return next(block.text for block in blocks(page) if block.language == language)


class Reader:
    """A reader who types what a page says, in an empty folder, with a Core whose agent is always right."""

    def __init__(self, folder: Path, core: FakeCore) -> None:
        self.folder = folder
        (folder / "pytest.ini").write_text("[pytest]\n")
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("OPENAI_", "MODEL_", "PYTEST_", "GITHUB_", "COLUMNS"))
        }
        self.env = {
            **kept,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OPENAI_BASE_URL": core.base_url,
            "OPENAI_API_KEY": core.api_key,
            "MODEL_API_KEY": "model-key-0123456789",
            "PYTEST_ADDOPTS": "-p no:hypothesispytest -p no:anyio",
        }

    def write_task(self, name: str) -> None:
        """Write the README's task."""
        task = self.folder / "tasks" / name
        if not task.exists():
            self.run(f"python -m pytest_core_rollouts new-task {name}")
        for file, language in (
            ("instruction.md", "markdown"),
            ("expected.json", "json"),
            ("solution/solve.sh", "bash"),
        ):
            (task / file).write_text(block_of(README, language))

    def type(self, command: str) -> str:
        """Run a command, after making the results files that it reads. Returns what it printed."""
        for old, new in FEWER.items():
            command = command.replace(old, new)
        inputs = re.sub(r"(--rollout-out |> ?)\S+", "", command)
        for path in re.findall(r"[\w./-]+\.jsonl", inputs):
            self._write_earlier_run(self.folder / path)
        printed = self.run(command)
        if (made := re.search(r"new-task (\S+)", command)) is not None:
            self.write_task(made.group(1))
        return printed

    def _write_earlier_run(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        main = self.folder / "main.jsonl"
        if not main.exists():
            self.run("pytest tasks --harness codex --samples 4 --rollout-out main.jsonl")
        if not path.exists():
            shutil.copy(main, path)

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with FakeCore(script=lambda body: Script(answer=b'{"total": 7}')) as core:
        yield Reader(tmp_path, core)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ELSEWHERE], ids=lambda page: page.name)
def test_commands_print_what_the_page_shows(reader: Reader, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    steps = [block for block in blocks(text) if block.language == "" and block.commands]
    if steps and "new-task" not in text:
        reader.write_task("total")
    for block in steps:
        printed = "".join(map(reader.type, block.commands))
        assert not missing_lines(block.output, printed), printed


def missing_lines(shown: str, printed: str) -> list[str]:
    """Return the lines of a page that a command did not print. Numbers may differ, and progress lines are left out."""

    def shape(line: str) -> str:
        return re.sub(r"\s+", " ", re.sub(r"[0-9a-f]*\d[0-9a-f]*", "0", line)).strip()

    lines = [line for line in shown.splitlines() if line.strip() not in ("", "...") and "[" not in line]
    seen = set(map(shape, printed.splitlines()))
    return [line for line in lines if shape(line) not in seen]


def test_first_readme_command_passes_in_a_fresh_checkout(tmp_path: Path) -> None:
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in files.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    [first] = [one for one in blocks(README) if one.text.startswith("python3 -m venv") and one.output]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "GITHUB_", "COLUMNS"))}
    done = subprocess.run(
        ["bash", "-c", first.text], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not missing_lines(first.output, done.stdout), done.stdout


def test_readme_shows_what_a_failed_rollout_prints(tmp_path: Path) -> None:
    [block] = [one for one in blocks(README) if one.text.startswith(".venv/bin/pytest tasks/failed-logins")]
    command = block.text.replace(".venv/bin/pytest", f"{sys.executable} -m pytest -p no:cacheprovider").strip()
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "GITHUB_", "COLUMNS"))}
    done = subprocess.run(
        ["bash", "-c", f"{command} --rollout-out {tmp_path}/x.jsonl"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert not missing_lines(block.output, done.stdout), done.stdout


def test_examples_run_as_their_page_says(reader: Reader) -> None:
    shutil.copytree(ROOT / "examples", reader.folder / "examples")
    [steps] = blocks((ROOT / "examples" / "README.md").read_text(encoding="utf-8"))
    printed = [reader.run(command) for command in steps.commands]
    assert len(printed) == 3
    assert "2 passed" in printed[0]
    assert "5 unsolved" in printed[1]
    assert "7 tasks checked: 0 errors" in printed[2]


def test_ci_runs_the_readme_test_command() -> None:
    [expression] = re.findall(r'grep -m 1 -E "(.+?)" README\.md', (ROOT / ".ci" / "run").read_text())
    [command] = re.findall(expression, README, re.MULTILINE)
    assert command.endswith("&& .venv/bin/pytest")


def test_chinese_readme_has_the_same_commands_and_links() -> None:
    chinese = (ROOT / "README.zh.md").read_text(encoding="utf-8")

    def commands(text: str) -> list[str]:
        return [re.sub(r" +#.*", "", block.text) for block in blocks(text) if block.language not in ("text", "yaml")]

    def links(text: str) -> set[str]:
        return set(re.findall(r"\]\(([^)]+)\)", text)) - {"README.md", "README.zh.md"}

    def commented(text: str) -> list[str]:
        return [re.sub(r" +#.*", "", line) for block in commands(text) for line in block.splitlines()]

    assert commented(chinese) == commented(README)
    assert links(chinese) == links(README)
    assert "(README.zh.md)" in README
    assert "(README.md)" in chinese


def test_readme_links_every_page() -> None:
    assert {page.name for page in DOCS} == set(re.findall(r"\(docs/([\w-]+\.md)\)", README))


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(ROOT / name for name in ("README.zh.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"))],
    ids=lambda page: page.name,
)
def test_links_have_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_pictures_are_small() -> None:
    for picture in (ROOT / "docs").glob("*.png"):
        assert picture.stat().st_size < 250_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_options_exist(page: Path) -> None:
    named = set(re.findall(r"--rollout-[a-z-]*[a-z]", page.read_text(encoding="utf-8")))
    assert named <= {option.flag for option in OPTIONS}


def test_yaml_settings_are_valid() -> None:
    for text in (
        block.text for block in blocks((ROOT / "docs" / "migrating.md").read_text()) if block.language == "yaml"
    ):
        assert load_yaml(Path("task.yaml"), text.encode()).checked(RULES)


def test_workflows_are_valid_yaml_and_run_the_tasks() -> None:
    workflows = [block.text for block in blocks((ROOT / "docs" / "ci.md").read_text()) if block.language == "yaml"]
    assert len(workflows) == 6
    for workflow in workflows:
        assert yaml.safe_load(workflow)
    assert json.dumps([yaml.safe_load(workflow) for workflow in workflows], default=str).count("pytest tasks") == 6


def test_workflows_hide_expected_values_and_have_few_permissions() -> None:
    text = (ROOT / "docs" / "ci.md").read_text()
    workflows = [yaml.safe_load(block.text) for block in blocks(text) if block.language == "yaml"]
    runs = [line for workflow in workflows for line in strings_of(workflow) if line.startswith("pytest ")]
    assert all("--rollout-hide-expected" in command for command in runs)
    github = [workflow for workflow in workflows if isinstance(workflow, dict) and "jobs" in workflow]
    assert len(github) == 4
    for workflow in github:
        comments = workflow["name"] == "shards"
        assert {name for name, access in workflow["permissions"].items() if access != "read"} == (
            {"pull-requests"} if comments else set()
        )
        assert set(workflow["permissions"]) <= {"contents", "actions", "pull-requests"}
        steps = [step for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
        assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"]) for step in steps)
        for step in steps:
            if "upload-artifact" in step["uses"]:
                assert step["with"]["include-hidden-files"] is True
            if "checkout" in step["uses"]:
                assert step["with"]["persist-credentials"] is False
    [gitlab] = [workflow["rollouts"] for workflow in workflows if isinstance(workflow, dict) and "rollouts" in workflow]
    assert gitlab["artifacts"]["access"] == "developer"


def test_workflow_commands_pass_in_order(reader: Reader) -> None:
    """Only commands that begin with pytest: the others install packages or ask GitHub for files."""
    reader.write_task("total")
    text = (ROOT / "docs" / "ci.md").read_text()
    commands = [
        line for block in blocks(text) if block.language == "yaml" for line in strings_of(yaml.safe_load(block.text))
    ]
    chosen = [command for command in commands if command.startswith("pytest ")]
    variables = {"${{ github.run_id }}": "42", "${{ matrix.shard }}": "1"}
    for name, value in variables.items():
        chosen = [command.replace(name, value) for command in chosen]
    assert len(chosen) == 6
    for command in chosen:
        reader.type(command)
    for name in ("pr.jsonl", "junit.xml", "main.jsonl", "main.html", "rollouts.jsonl", "rollouts.md", "shard-1.jsonl"):
        assert (reader.folder / "results" / name).stat().st_size > 0


def strings_of(workflow: object) -> Iterator[str]:
    """Yield every string in a workflow."""
    if isinstance(workflow, str):
        yield workflow.strip()
    elif isinstance(workflow, (dict, list)):
        for part in workflow.values() if isinstance(workflow, dict) else workflow:
            yield from strings_of(part)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_compile(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "python":
            compile(block.text, page.name, "exec")
        if block.language == "json":
            json.loads(block.text)


def test_code_blocks_have_known_languages() -> None:
    """A block in another language would not be run or checked."""
    for page in PAGES:
        languages = {block.language for block in blocks(page.read_text(encoding="utf-8"))}
        assert languages <= {"", "text", "python", "yaml", "json", "markdown", "bash"}, page


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return load_generator("generate")


def test_options_page_is_current(generator: ModuleType) -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert page == generator.options_page(), "run `python docs/generate.py`"


def test_records_page_lists_every_field_in_order() -> None:
    text = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
    table = text.partition("| field | meaning |")[2].partition("\n\n")[0]
    listed = [field for row in table.splitlines()[2:] for field in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert listed == [field.name for field in dataclasses.fields(RolloutRecord)]


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_has_usage_and_arguments(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: python -m pytest_core_rollouts {verb} ")
    assert "positional arguments:" in text
    assert all(line.strip() == "" or len(line) <= 100 for line in text.splitlines())


def test_docs_show_every_verb() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [verb for verb in VERBS if f"python -m pytest_core_rollouts {verb}" not in text] == []
    named = set(re.findall(r"python -m pytest_core_rollouts ([a-z-]+)", text))
    assert named == set(VERBS)
