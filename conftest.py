"""What this repository's own test runs need: `pytester`, and several processes, since most tests wait for others."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

PROCESSES = 4


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Spread a bare `pytest`, which runs all tests, unless the command line says otherwise."""
    if hasattr(config, "workerinput"):  # it is one of these processes
        return
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.getoption("collectonly"):
        return
    option = config.option
    if getattr(option, "numprocesses", 0) is None and not getattr(option, "usepdb", False):
        option.numprocesses = PROCESSES
        option.dist = "worksteal"
