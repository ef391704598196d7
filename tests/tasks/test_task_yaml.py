from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.grading.comparing import Tolerance
from pytest_core_rollouts.tasks.strict_yaml import YamlError
from pytest_core_rollouts.tasks.task_settings import Network, Xfail
from pytest_core_rollouts.tasks.task_yaml import read_settings
from tests.support.tables import rows

FILE = Path("task.yaml")


def settings(content: str) -> dict[str, Any]:
    """The settings in a task.yaml with this content."""
    return read_settings(FILE, content.encode())


@pytest.mark.parametrize(
    ("content", "name", "value"),
    [
        ("tags: [sql, slow-one, a_1]", "tags", ("sql", "slow-one", "a_1")),
        ("tags: []", "tags", ()),
        ("timeout: 90", "timeout", 90.0),
        ("timeout: 0.5", "timeout", 0.5),
        ("timeout: 1.0e+3", "timeout", 1000.0),
        ("tolerance: {relative: 0.05}", "tolerance", Tolerance(relative=0.05)),
        ("tolerance: {absolute: 2}", "tolerance", Tolerance(absolute=2.0)),
        ("tolerance: {absolute: 2, relative: 1.0e-3}", "tolerance", Tolerance(relative=0.001, absolute=2.0)),
        ("network: disabled", "network", Network.disabled()),
        ("network: enabled", "network", Network.enabled()),
        ("network: {allowed_domains: [data.example.com]}", "network", Network("restricted", ("data.example.com",))),
        ("env: {A: '1', _b2: '', C: 'a b'}", "env", {"A": "1", "_b2": "", "C": "a b"}),
        ("packages: {python: [numpy==2.0]}", "packages", {"python": ("numpy==2.0",)}),
        ("setup_commands: [make, 'echo x: y']", "setup_commands", ("make", "echo x: y")),
        ("samples: 8", "samples", 8),
        ("skip: needs a network", "skip", "needs a network"),
        ("xfail: too hard", "xfail", Xfail("too hard")),
    ],
)
def test_each_setting_is_read(content: str, name: str, value: Any) -> None:
    assert settings(content) == {name: value}


def test_an_empty_file_says_nothing() -> None:
    assert settings("") == settings("# later\n") == {}


@rows(
    ("content", "problem"),
    [
        # Keys
        ("timeuot: 60", "timeuot: unknown key; did you mean timeout?"),
        (
            "model: x",
            "model: unknown key; known keys are tags, timeout, tolerance, network, env, packages, setup_commands",
        ),
        ("timeout: 60\ntimeout: 90", "timeout: a duplicate key (first on line 2); remove one of the two"),
        ("- tags", "the file must hold `key: value` lines, not a list or a single value"),
        # Numbers
        (
            "timeout: 10:00",
            "timeout: 10:00 is ambiguous: YAML reads it in base 60; write a plain number, or put",
        ),
        (
            "timeout: 1e3",
            "timeout: expected a number, got '1e3'; YAML needs a point and a sign with an exponent",
        ),
        ("timeout: '60'", "timeout: expected a number, got '60'; remove the quotes"),
        ("timeout: 60s", "timeout: expected a number, got '60s'; write it without a unit"),
        ("timeout: 0123", "timeout: 0123 is ambiguous as a number; write plain decimal digits"),
        ("timeout: .nan", "timeout: .nan is not finite"),
        ("timeout: .inf", "timeout: .inf is not finite"),
        ("timeout: -5", "timeout: expected a number above 0, got -5"),
        ("timeout: 0", "timeout: expected a number above 0, got 0"),
        ("timeout:", "timeout: expected a number, got nothing; remove the key to use the default"),
        ("timeout: true", "timeout: expected a number, got true"),
        ("timeout: no", "timeout: YAML reads no as a boolean"),
        ("timeout: [60]", "timeout: expected a number, got a list"),
        ("samples: 0", "samples: expected a positive integer, got 0"),
        ("samples: -1", "samples: expected a positive integer, got -1"),
        ("samples: 1.5", "samples: expected an integer, got 1.5"),
        ("samples: 2.0", "samples: expected an integer, got 2.0"),
        ("samples: '2'", "samples: expected an integer, got '2'; remove the quotes"),
        ("samples: !!python/int 2", "samples: YAML gives '2' a special meaning (tag:yaml.org,2002:python/int)"),
        # Tolerance
        (
            "tolerance: 0.1",
            "tolerance: expected a mapping of names to values, got 0.1; write it as {name: value}",
        ),
        ("tolerance: {}", "tolerance: expected relative, absolute or both; remove the key to use the default"),
        ("tolerance: {relativ: 0.1}", "tolerance.relativ: unknown key; did you mean relative?"),
        (
            "tolerance: {relative: 1e-3}",
            "tolerance.relative: expected a number, got '1e-3'; YAML needs a point and",
        ),
        ("tolerance: {absolute: -1}", "tolerance.absolute: expected a number above 0, got -1"),
        ("tolerance: {absolute: 0}", "tolerance.absolute: expected a number above 0, got 0"),
        ("tolerance: {relative: 5}", "tolerance.relative: expected a number below 1 (5 percent is 0.05), got 5"),
        ("tolerance: {relative: .inf}", "tolerance.relative: .inf is not finite"),
        # Texts
        ("skip: true", "skip: expected a string, got true; put it in quotes"),
        ("skip: no", "skip: YAML reads no as a boolean"),
        ("xfail:", "xfail: expected a string, got nothing; fill it in, or remove the key"),
        ("xfail: ' '", "xfail: must not be blank"),
        ("skip: 1.10", "skip: expected a string, got 1.1; put it in quotes"),
        ("skip: 2026-01-31", "skip: YAML reads 2026-01-31 as a date; put it in quotes if it is a string"),
        ("setup_commands: make", "setup_commands: expected a list of strings, got 'make'; write it as [a, b]"),
        ("setup_commands: ['']", "setup_commands[0]: must not be blank"),
        ("setup_commands: [{command: make}]", "setup_commands[0]: expected a string, got a mapping"),
        # Tags
        ("tags: sql", "tags: expected a list of strings, got 'sql'"),
        ("tags: [SQL]", "tags[0]: invalid tag 'SQL'; use lowercase letters, digits, - and _, starting with a letter"),
        ("tags: [a, 1b]", "tags[1]: invalid tag '1b'"),
        ("tags: [a b]", "tags[0]: invalid tag 'a b'"),
        ('tags: ["a\\n"]', "tags[0]: invalid tag 'a\\n'"),
        ("tags: [1]", "tags[0]: expected a string, got 1; put it in quotes"),
        ("tags: [no]", "tags[0]: YAML reads no as a boolean"),
        ("tags: [a, b, a]", "tags[2]: duplicate tag 'a'; remove one"),
        *(
            (f"tags: [{tag}]", f"tags[0]: '{tag}' is a pytest marker and can't be a tag; choose another name")
            for tag in (
                "skip",
                "skipif",
                "xfail",
                "parametrize",
                "usefixtures",
                "filterwarnings",
                "tryfirst",
                "rollout",
            )
        ),
        # Network
        ("network: off", "network: YAML reads off as a boolean"),
        ("network: offline", "network: expected disabled, enabled or {allowed_domains: [...]}, got 'offline'"),
        ("network:", "network: expected disabled, enabled or {allowed_domains: [...]}, got nothing"),
        ("network: {}", "network: expected disabled, enabled or {allowed_domains: [...]}, got a mapping"),
        ("network: [data.example.com]", "network: expected disabled, enabled or {allowed_domains: [...]}, got a list"),
        ("network: {domains: [a]}", "network.domains: unknown key; did you mean allowed_domains?"),
        (
            "network: {allowed_domains: []}",
            "network.allowed_domains: expected at least one domain; for none, write network: ",
        ),
        ("network: {allowed_domains: data.example.com}", "network.allowed_domains: expected a list of strings"),
        (
            "network: {allowed_domains: [a.org, https://b.org/x]}",
            "network.allowed_domains[1]: invalid domain 'https://b.org/x'",
        ),
        (
            "network: {allowed_domains: ['a.org:443']}",
            "network.allowed_domains[0]: invalid domain 'a.org:443'; write only the host name",
        ),
        # Environment
        ("env: [A]", "env: expected a mapping of names to values, got a list"),
        ("env: {A: 1}", "env.A: expected a string, got 1; put it in quotes"),
        ("env: {A: true}", "env.A: expected a string, got true; put it in quotes"),
        ("env: {A: yes}", "env.A: YAML reads yes as a boolean"),
        ("env: {A: 10:00}", "env.A: 10:00 is ambiguous"),
        ("env: {A: }", "env.A: expected a string, got nothing; put it in quotes"),
        ("env: {1A: x}", "env.1A: invalid variable name; use letters, digits and _, not starting with a digit"),
        ("env: {'A=B': x}", "env.A=B: invalid variable name"),
        ("env: {'': x}", "env.: invalid variable name"),
        ('env: {A: "a\\0"}', "env.A: the string contains a NUL character; remove it"),
        ("env: {1: x}", "env: the key 1 must be a string; put it in quotes"),
        # Packages
        ("packages: [numpy]", "packages: expected a mapping of names to values, got a list"),
        (
            "packages: {system: [jq]}",
            "packages.system: OpenAgentCore rejects system packages; use npm or python, or bring",
        ),
        ("packages: {pip: [x]}", "packages.pip: unknown key; known keys are npm, python, system"),
        ("packages: {npm: x}", "packages.npm: expected a list of strings, got 'x'"),
        ("packages: {npm: [1.10]}", "packages.npm[0]: expected a string, got 1.1; put it in quotes"),
    ],
)
def test_a_faulty_setting_is_named_with_its_line(content: str, problem: str) -> None:
    with pytest.raises(YamlError) as caught:
        settings(f"# first line\n{content}\n")
    line = 3 if "\n" in content else 2
    assert str(caught.value).startswith(f"task.yaml:{line}: {problem}")


def test_the_line_is_that_of_the_very_element() -> None:
    with pytest.raises(YamlError) as caught:
        settings("tags:\n  - a\n  - b\n  - A\n")
    assert str(caught.value).startswith("task.yaml:4: tags[2]: invalid tag 'A'")
    with pytest.raises(YamlError) as caught:
        settings("env:\n  A: a\n\n  B: 1\n")
    assert str(caught.value).startswith("task.yaml:4: env.B: expected a string")


def test_networks() -> None:
    assert Network.disabled().wire() == {"access": "disabled"}
    assert Network.enabled().wire() == {"access": "enabled"}
    assert Network("restricted", ("a",)).wire() == {"access": "restricted", "allowed_domains": ["a"]}
    assert (Network.disabled().is_disabled, Network.enabled().is_disabled) == (True, False)
