"""What this repository's own test runs need: `pytester`, compiled files, and several processes."""

from __future__ import annotations

import os
import sys

import pytest

pytest_plugins = ["pytester"]

PROCESSES = 4

# Many images set this variable. With it, each of the many inner pytest runs compiles pytest and its plugins again,
# which takes seconds of CPU each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


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
