"""Writes `options.md` from the declared options: run `python docs/generate.py` after a change of options."""

from __future__ import annotations

from pathlib import Path

from pytest_core_rollouts.options.declared import GROUPS, Option

HEAD = """\
# Options and ini keys

Generated from the code by `docs/generate.py`.

These are options of `pytest`.
Each has an ini key, except for `--rollout-run`, for `pytest.ini`, `pyproject.toml` and the like.
If a setting is given in several places, the order of precedence is: command line, `task.yaml`, ini file, default.
Long names always exist; a short name only if no other plugin or conftest of your project uses it.
Keys only come from the environment.
"""

TABLE = """
## {title}

| option | ini key | meaning |
| --- | --- | --- |
"""

TAIL = """
## Only in the ini file, and in the environment

| option | ini key | meaning |
| --- | --- | --- |
| | `rollout_tasks` | Folders with tasks, relative to the ini file. Default: `tasks`. |
| | `rollout_task_env` | Names of environment variables that tasks may take with `from_env`; no others can then be taken. Default: all except the run's own keys. |
| | `rollout_run` | Run tasks whenever they are collected, even without an option or a path that requests it. Useful in editors that run single tests. |

| environment variable | meaning |
| --- | --- |
| `OPENAI_BASE_URL`, `OPENAI_API_KEY` | the Core and its key |
| `MODEL_API_KEY` | the key of the model endpoint of `--model-base-url`; an agent file may name another variable |
"""


def options_page() -> str:
    """Return the page as Markdown."""
    parts = []
    for title, options in GROUPS.items():
        parts += [TABLE.format(title=title.capitalize()), *map(_row, options)]
    return HEAD + "".join(parts) + TAIL


def _row(option: Option) -> str:
    names = " or ".join(f"`{name}`" for name in (option.bare, option.flag) if name)
    metavar = f" `{option.metavar}`".replace("|", "\\|") if option.metavar else ""
    key = f"`{option.dest}`" if option.in_ini else ""
    return f"| {names}{metavar} | {key} | {option.help.replace('|', chr(92) + '|')} |\n"


if __name__ == "__main__":
    (Path(__file__).parent / "options.md").write_text(options_page(), encoding="utf-8")
