"""The settings of a task: their rules, and how `task.yaml` is read.

The same rules apply to a task made in code. All settings are optional; what is not set comes from the run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.grading.answers import check_expected, round_reward
from pytest_core_rollouts.grading.comparing import KeyRule, Tolerance
from pytest_core_rollouts.grading.rules import BadRule, rules_by_path
from pytest_core_rollouts.tasks.strict_yaml import (
    Invalid,
    Rule,
    check,
    describe,
    load_yaml,
    mapping,
    positive,
    positive_integer,
    sendable,
    text,
    texts,
)
from pytest_core_rollouts.tasks.task_settings import FINDINGS, RUN_KEYS, FromEnv, Network, Outputs, Xfail, looks_secret


def read_settings(path: Path, content: bytes, expected: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The settings in a `task.yaml`, by their names in `Task`, checked. Raises YamlError with file, key and line.

    Rules for keys are held against the `expected` answer.
    """
    file = load_yaml(path, content)
    settings = file.checked(RULES)
    if rules := settings.get("grading"):
        try:
            check_grading(expected, rules)
        except Invalid as invalid:
            raise file.error(invalid.problem, invalid.key) from None
    return settings


def check_grading(expected: Mapping[str, Any] | None, rules: Mapping[str, KeyRule]) -> None:
    """Raise Invalid, with the key, for a rule that can't hold for this expected answer."""
    if expected is None:
        raise Invalid("needs an expected.json; remove it", ("grading",))
    try:
        rules_by_path(expected, rules)
    except BadRule as bad:
        raise Invalid(bad.problem, ("grading", bad.path)) from None


TAGS_LIMIT: Final = 50


def _tags(value: Any) -> tuple[str, ...]:
    tags = texts(value)
    if len(tags) > TAGS_LIMIT:
        raise Invalid(f"expected at most {TAGS_LIMIT} tags, got {len(tags):,}; remove some")
    for index, tag in enumerate(tags):
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", tag):
            raise Invalid(
                f"invalid tag {tag!r}; use lowercase letters, digits, - and _, starting with a letter", (index,)
            )
        if tag in _RESERVED_TAGS:
            raise Invalid(f"{tag!r} is a pytest marker and can't be a tag; choose another name", (index,))
        if tag in tags[:index]:
            raise Invalid(f"duplicate tag {tag!r}; remove one", (index,))
    return tags


_RESERVED_TAGS: Final = frozenset(
    ("skip", "skipif", "xfail", "parametrize", "usefixtures", "filterwarnings", "tryfirst", "trylast", "rollout")
)


def _tolerance(value: Any) -> Tolerance:
    if isinstance(value, Tolerance):
        return value
    given = check(mapping(value), {"relative": _relative, "absolute": positive})
    if not given:
        raise Invalid("expected relative, absolute or both; remove the key to use the default")
    return Tolerance(**given)


def _relative(value: Any) -> float:
    if (number := positive(value)) >= 1:
        raise Invalid(f"expected a number below 1 (5 percent is 0.05), got {value!r}")
    return number


def _network(value: Any) -> Network:
    if isinstance(value, Network):
        value = {"allowed_domains": value.allowed_domains} if value.access == "restricted" else value.access
    if value in ("disabled", "enabled"):
        return Network(value)
    if isinstance(value, Mapping):
        domains = check(mapping(value), {"allowed_domains": _domains}).get("allowed_domains", ())
        if domains:
            return Network("restricted", domains)
    raise Invalid(f"expected disabled, enabled or {{allowed_domains: [...]}}, got {describe(value)}")


def _domains(value: Any) -> tuple[str, ...]:
    domains = texts(value)
    if not domains:
        raise Invalid("expected at least one domain; for none, write network: disabled")
    for index, domain in enumerate(domains):
        if not re.fullmatch(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", domain):
            raise Invalid(f"invalid domain {domain!r}; write only the host name, such as x.example", (index,))
    return domains


def _env(value: Any) -> dict[str, str | FromEnv]:
    return check(mapping(value), {name: _variable(name) for name in value})


def _variable(name: str) -> Rule:
    def checked(value: Any) -> str | FromEnv:
        _variable_name(name)
        if isinstance(value, (FromEnv, Mapping)):
            return _from_env(name, value)
        if not isinstance(value, str):
            raise Invalid(f"expected a string, got {describe(value)}; put it in quotes, or write {{from_env: NAME}}")
        return sendable(value)

    return checked


def _variable_name(name: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise Invalid("invalid variable name; use letters, digits and _, not starting with a digit")
    return name


def _from_env(variable: str, value: FromEnv | Mapping[str, Any]) -> FromEnv:
    given: Mapping[str, Any] = value if isinstance(value, Mapping) else _without_none(vars(value))
    names = {"name": _variable_name} if isinstance(value, FromEnv) else {"from_env": _variable_name}
    checked = check(mapping(given), {**names, "secret": _boolean})
    name = checked.get("name", checked.get("from_env"))
    if name is None:
        raise Invalid("missing from_env; name an environment variable, or write the value itself as a string")
    if name.upper() in RUN_KEYS:
        raise Invalid(f"{name} holds a key of the run, which tasks can't use; give the task its own variable")
    return FromEnv(name, checked.get("secret", looks_secret(variable) or looks_secret(name)))


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Invalid(f"expected true or false, got {describe(value)}")
    return value


def _packages(value: Any) -> dict[str, tuple[str, ...]]:
    return check(mapping(value), {"npm": texts, "python": texts, "system": _no_system_packages})


def _no_system_packages(value: Any) -> Any:
    raise Invalid("OpenAgentCore rejects system packages; use npm or python, or bring the programs in files/")


def _grading(value: Any) -> dict[str, KeyRule]:
    given = mapping(value)
    return check(given, dict.fromkeys(given, _key_rule))


def _key_rule(value: Any) -> KeyRule:
    if isinstance(value, KeyRule):
        return value
    flags = dict.fromkeys(("exact", "ignore_case", "unordered"), _true)
    numbers = {"relative": _relative, "absolute": positive}
    given = check(mapping(value), {**numbers, **flags, "one_of": _one_of})
    if not given:
        raise Invalid(f"expected at least one rule: {', '.join((*numbers, *flags, 'one_of'))}")
    tolerance = {name: given.pop(name) for name in numbers if name in given}
    if given.get("exact") and (tolerance or given.get("ignore_case")):
        raise Invalid("exact can't be combined with a tolerance or ignore_case; remove one of them")
    return KeyRule(Tolerance(**tolerance) if tolerance else None, **given)


def _true(value: Any) -> bool:
    if value is not True:
        raise Invalid(f"expected true, got {describe(value)}; to drop the rule, remove the key")
    return True


def _one_of(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)) or not value:
        raise Invalid(f"expected a list of further correct values, got {describe(value)}; write it as [a, b]")
    try:
        check_expected({"one_of": list(value)})
    except ValueError as error:
        raise Invalid(str(error)) from None
    return tuple(value)


def _outputs(value: Any) -> Outputs:
    if isinstance(value, Outputs):
        value = vars(value)
    if not isinstance(value, Mapping):
        value = {"files": value}
    given = {name: item for name, item in value.items() if not name.startswith("_")}
    caps = {"max_bytes": positive_integer, "max_total_bytes": positive_integer}
    checked = check(given, {"files": _patterns, **caps})
    if "files" not in checked:
        raise Invalid("missing files; write patterns of paths below /workspace/outputs")
    return Outputs(**checked)


def _patterns(value: Any) -> tuple[str, ...]:
    patterns = texts(value)
    if not patterns:
        raise Invalid("expected at least one pattern, such as fix.patch or reports/*.md")
    for index, pattern in enumerate(patterns):
        parts = pattern.split("/")
        if pattern.startswith(("/", "outputs/")) or any(part in ("", ".", "..") for part in parts):
            problem = f"{pattern!r}: expected a path below /workspace/outputs, such as fix.patch or reports/*.md"
            raise Invalid(problem, (index,))
        if pattern == "answer.json":
            raise Invalid("answer.json is always fetched; remove it", (index,))
    return patterns


def _pass_threshold(value: Any) -> float:
    if (number := positive(value)) > 1:
        raise Invalid(f"expected a reward above 0 and at most 1, got {value!r}")
    return round_reward(number) or number  # as rewards are, so that 1/3 passes 0.3333333333333333


def _xfail(value: Any) -> Xfail:
    if isinstance(value, Xfail):
        return value
    if not isinstance(value, Mapping):
        return Xfail(text(value))
    given = check(mapping(value), {"reason": text, **dict.fromkeys(("harnesses", "models", "agents"), _names)})
    if "reason" not in given:
        raise Invalid("missing reason; say why no agent is expected to solve it yet")
    return Xfail(**given)


def _names(value: Any) -> tuple[str, ...]:
    if not (names := texts(value)):
        raise Invalid("expected at least one name; remove the key to mean all")
    return names


def _check(value: Any) -> str:
    if value != "static":
        raise Invalid(f"expected static, got {describe(value)}; remove the key to check the task by running it")
    return "static"


def _silence(value: Any) -> dict[str, str]:
    return check(mapping(value), dict.fromkeys(FINDINGS, text))


RULES: Final[Mapping[str, Rule]] = {
    "tags": _tags,
    "timeout": positive,
    "tolerance": _tolerance,
    "network": _network,
    "env": _env,
    "packages": _packages,
    "setup_commands": texts,
    "samples": positive_integer,
    "skip": text,
    "xfail": _xfail,
    "grading": _grading,
    "pass_threshold": _pass_threshold,
    "outputs": _outputs,
    "pack": _boolean,
    "silence": _silence,
    "check": _check,
}
"""The rule of each setting; each takes what YAML gives as well as what the setting is kept as."""
