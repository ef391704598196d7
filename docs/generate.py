"""Writes `options.md`, which is made from the code: run `python docs/generate.py` after a change of options."""

from __future__ import annotations

from pathlib import Path

from pytest_core_rollouts.options.declared import OPTIONS

HEAD = """\
# Options and ini keys

Made from the code by `docs/generate.py`.

Options are given to `pytest`; each has an ini key, for `pytest.ini`, `pyproject.toml` and the like. Where a setting is said in several places the order is: command line, then `task.yaml`, then the ini file, then the default.
A short name is there unless another plugin or a conftest of your project has taken it; the long one always is. Keys come from the environment only.

| option | ini key | meaning |
| --- | --- | --- |
"""

TAIL = """\
| | `rollout_tasks` | Folders that hold tasks, relative to the ini file. Default: `tasks`. |
| | `rollout_task_env` | Names of environment variables that tasks may take with `from_env`; with it, no others. Default: any but the run's own keys. |
| | `rollout_run` | Run tasks wherever they are collected, without being asked to by an option or a path. |

| environment variable | meaning |
| --- | --- |
| `OPENAI_BASE_URL`, `OPENAI_API_KEY` | the Core and its key |
| `MODEL_API_KEY` | the key of a model endpoint given by `--model-base-url`; an agent file may name another variable |
"""


def options_page() -> str:
    """The page, as Markdown."""
    rows = []
    for option in OPTIONS:
        names = " or ".join(f"`{name}`" for name in (option.bare, option.flag) if name)
        metavar = f" `{option.metavar}`".replace("|", "\\|") if option.metavar else ""
        rows.append(f"| {names}{metavar} | `{option.dest}` | {option.help.replace('|', chr(92) + '|')} |\n")
    return HEAD + "".join(rows) + TAIL


if __name__ == "__main__":
    (Path(__file__).parent / "options.md").write_text(options_page(), encoding="utf-8")
