"""What this repository's own test runs need: `pytester`, compiled files, several processes, `--one-case-each`."""

from __future__ import annotations

import os
import random
import sys

import pytest

pytest_plugins = ["pytester"]

PROCESSES = 4

# Many images set this variable. With it, each of the many inner pytest runs compiles pytest and its plugins again,
# which takes seconds of CPU each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-case-each",
        metavar="SEED",
        help="run one case of each parametrized test, chosen by this seed (any text), and deselect the others",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run a bare `pytest`, which runs all tests, in several processes, because most tests wait for something."""
    if hasattr(config, "workerinput"):  # this is one of these processes
        return
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.getoption("collectonly"):
        return
    option = config.option
    if getattr(option, "numprocesses", 0) is None and not getattr(option, "usepdb", False):
        option.numprocesses = PROCESSES
        option.dist = "worksteal"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Apply `--one-case-each` to what `-m` and `-k` have left."""
    seed = config.getoption("one_case_each")
    if seed is None:
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    # Every xdist worker must choose the same cases, so the choice depends on the seed and the test's name only.
    chosen = {random.Random(f"{seed} {name}").choice(same).nodeid for name, same in cases.items()}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = [item for item in items if item.nodeid in chosen]
