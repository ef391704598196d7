"""The hooks that pytest calls. Each calls a function of another module.

What only a session with rollouts needs is imported when rollouts are requested, so that other runs start fast.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts import hookspecs
from pytest_core_rollouts.collecting import inactive, task_data
from pytest_core_rollouts.options import activation, completion
from pytest_core_rollouts.options import declared as options
from pytest_core_rollouts.text import escaped


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    options.restore_conftest_paths(early_config, parser, args)
    task_data.guard_first_imports(early_config)
    # Before plugins add theirs to the same list.
    early_config.stash[activation.own_markers_key] = tuple(early_config.getini("markers"))
    if completion.REQUESTED:
        completion.prepare(lambda: activation.roots_of(early_config))
    result = yield
    options.add_bare_options(parser, args)
    return result


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "rollout(task, harness, model, agent, sample): one rollout of a task, set by the plugin; "
        "choose with -m 'rollout(sample=0)'",
    )
    if activation.rollouts_requested(config):
        from pytest_core_rollouts.running import session_plugin

        try:
            session_plugin.begin(config)
        except pytest.UsageError as error:
            raise pytest.UsageError(*map(escaped, error.args)) from None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[activation.IN_WORKER] = activation.rollouts_requested(node.config)


def pytest_report_header(config: pytest.Config) -> str | None:
    if not activation.rollouts_requested(config):
        return inactive.header(config)
    from pytest_core_rollouts.running import session_plugin

    return session_plugin.header(config)


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Show the line about tasks in `pytest --collect-only -q`, which has no header."""
    listed = config.option.collectonly and config.option.verbose < 0
    return inactive.header(config) if listed and not activation.rollouts_requested(config) else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not activation.rollouts_requested(config):
        return inactive.ignore(collection_path, config)
    from pytest_core_rollouts.collecting import collect

    return collect.ignore(collection_path, config)


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if not activation.rollouts_requested(parent.config):
        return inactive.directory(path, parent)
    from pytest_core_rollouts.collecting import collect

    return collect.directory(path, parent)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix != ".py" or not activation.rollouts_requested(parent.config):
        return None
    from pytest_core_rollouts.collecting import generated

    return generated.collect_file(file_path, parent)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return activation.keep_from_import(module_path, parent)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    if not activation.rollouts_requested(config):
        return (yield)
    from pytest_core_rollouts.collecting import collect, selection, shards

    collect.keep_one_of_each(config, items)
    found = [*items]
    result = yield
    shards.keep_shard(session, items)
    selection.note_found(session, found, items)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if not activation.rollouts_requested(item.config):
        return
    from pytest_core_rollouts.collecting import collect

    collect.narrow_xfails(item)  # after every conftest's hook, and before pytest looks at them
