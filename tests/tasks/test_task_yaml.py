from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.grading.comparing import Tolerance
from pytest_core_rollouts.tasks.strict_yaml import YamlError
from pytest_core_rollouts.tasks.task_settings import Network, Xfail
from pytest_core_rollouts.tasks.task_yaml import read_settings

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


@pytest.mark.parametrize(
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
            "timeout: 10:00 is ambiguous: YAML reads it in base 60; write a plain number, or quotes around",
        ),
        (
            "timeout: 1e3",
            "timeout: a number is due, not the text '1e3'; YAML needs a point and a sign with an exponent",
        ),
        ("timeout: '60'", "timeout: a number is due, not the text '60'; remove the quotes"),
        ("timeout: 60s", "timeout: a number is due, not the text '60s'; write digits alone, without a unit"),
        ("timeout: 0123", "timeout: 0123 is ambiguous as a number; write plain decimal digits"),
        ("timeout: .nan", "timeout: .nan is not finite"),
        ("timeout: .inf", "timeout: .inf is not finite"),
        ("timeout: -5", "timeout: a number above 0 is due, not -5"),
        ("timeout: 0", "timeout: a number above 0 is due, not 0"),
        ("timeout:", "timeout: a number is due, not nothing; remove the key for the default"),
        ("timeout: true", "timeout: a number is due, not the boolean true"),
        ("timeout: no", "timeout: YAML reads no as a boolean"),
        ("timeout: [60]", "timeout: a number is due, not a list"),
        ("samples: 0", "samples: a whole number of 1 or more is due, not 0"),
        ("samples: -1", "samples: a whole number of 1 or more is due, not -1"),
        ("samples: 1.5", "samples: a whole number is due, not the number 1.5"),
        ("samples: 2.0", "samples: a whole number is due, not the number 2.0"),
        ("samples: '2'", "samples: a whole number is due, not the text '2'; remove the quotes"),
        ("samples: !!python/int 2", "samples: YAML gives '2' a meaning of its own (tag:yaml.org,2002:python/int)"),
        # Tolerance
        (
            "tolerance: 0.1",
            "tolerance: a mapping of names to values is due, not the number 0.1; write it as {name: value}",
        ),
        ("tolerance: {}", "tolerance: relative or absolute is due; remove the key for the default"),
        ("tolerance: {relativ: 0.1}", "tolerance.relativ: unknown key; did you mean relative?"),
        (
            "tolerance: {relative: 1e-3}",
            "tolerance.relative: a number is due, not the text '1e-3'; YAML needs a point and",
        ),
        ("tolerance: {absolute: -1}", "tolerance.absolute: a number above 0 is due, not -1"),
        ("tolerance: {absolute: 0}", "tolerance.absolute: a number above 0 is due, not 0"),
        ("tolerance: {relative: 5}", "tolerance.relative: a number below 1 is due (5 percent is 0.05), not 5"),
        ("tolerance: {relative: .inf}", "tolerance.relative: .inf is not finite"),
        # Texts
        ("skip: true", "skip: a text is due, not the boolean true; put it in quotes"),
        ("skip: no", "skip: YAML reads no as a boolean"),
        ("xfail:", "xfail: a text is due, not nothing; fill it in, or remove the key"),
        ("xfail: ' '", "xfail: the text is blank; fill it in"),
        ("skip: 1.10", "skip: a text is due, not the number 1.1; put it in quotes"),
        ("skip: 2026-01-31", "skip: YAML reads 2026-01-31 as a date; put it in quotes for a text"),
        ("setup_commands: make", "setup_commands: a list of texts is due, not the text 'make'; write it as [a, b]"),
        ("setup_commands: ['']", "setup_commands[0]: the text is blank; fill it in"),
        ("setup_commands: [{command: make}]", "setup_commands[0]: a text is due, not a mapping"),
        # Tags
        ("tags: sql", "tags: a list of texts is due, not the text 'sql'"),
        ("tags: [SQL]", "tags[0]: 'SQL' is no tag; use lower-case letters, digits, - and _, a letter first"),
        ("tags: [a, 1b]", "tags[1]: '1b' is no tag"),
        ("tags: [a b]", "tags[0]: 'a b' is no tag"),
        ('tags: ["a\\n"]', "tags[0]: 'a\\n' is no tag"),
        ("tags: [1]", "tags[0]: a text is due, not the number 1; put it in quotes"),
        ("tags: [no]", "tags[0]: YAML reads no as a boolean"),
        ("tags: [a, b, a]", "tags[2]: 'a' is there twice; remove one"),
        *(
            (f"tags: [{tag}]", f"tags[0]: '{tag}' is a marker with a meaning of its own; choose another word")
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
        ("network: offline", "network: disabled, enabled or {allowed_domains: [...]} is due, not the text 'offline'"),
        ("network:", "network: disabled, enabled or {allowed_domains: [...]} is due, not nothing"),
        ("network: {}", "network: disabled, enabled or {allowed_domains: [...]} is due, not a mapping"),
        ("network: [data.example.com]", "network: disabled, enabled or {allowed_domains: [...]} is due, not a list"),
        ("network: {domains: [a]}", "network.domains: unknown key; did you mean allowed_domains?"),
        (
            "network: {allowed_domains: []}",
            "network.allowed_domains: at least one domain is due; for none, write network: ",
        ),
        ("network: {allowed_domains: data.example.com}", "network.allowed_domains: a list of texts is due"),
        (
            "network: {allowed_domains: [a.org, https://b.org/x]}",
            "network.allowed_domains[1]: invalid domain 'https://b.org/x'",
        ),
        (
            "network: {allowed_domains: ['a.org:443']}",
            "network.allowed_domains[0]: invalid domain 'a.org:443'; write only the host name",
        ),
        # Environment
        ("env: [A]", "env: a mapping of names to values is due, not a list"),
        ("env: {A: 1}", "env.A: a text is due, not the number 1; put it in quotes"),
        ("env: {A: true}", "env.A: a text is due, not the boolean true; put it in quotes"),
        ("env: {A: yes}", "env.A: YAML reads yes as a boolean"),
        ("env: {A: 10:00}", "env.A: 10:00 is ambiguous"),
        ("env: {A: }", "env.A: a text is due, not nothing; put it in quotes"),
        ("env: {1A: x}", "env.1A: no name for a variable; use letters, digits and _, no digit first"),
        ("env: {'A=B': x}", "env.A=B: no name for a variable"),
        ("env: {'': x}", "env.: no name for a variable"),
        ('env: {A: "a\\0"}', "env.A: the text holds a NUL character; remove it"),
        ("env: {1: x}", "env: the key 1 must be a text; put it in quotes"),
        # Packages
        ("packages: [numpy]", "packages: a mapping of names to values is due, not a list"),
        (
            "packages: {system: [jq]}",
            "packages.system: OpenAgentCore rejects system packages; use npm or python, or bring",
        ),
        ("packages: {pip: [x]}", "packages.pip: unknown key; known keys are npm, python, system"),
        ("packages: {npm: x}", "packages.npm: a list of texts is due, not the text 'x'"),
        ("packages: {npm: [1.10]}", "packages.npm[0]: a text is due, not the number 1.1; put it in quotes"),
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
    assert str(caught.value).startswith("task.yaml:4: tags[2]: 'A' is no tag")
    with pytest.raises(YamlError) as caught:
        settings("env:\n  A: a\n\n  B: 1\n")
    assert str(caught.value).startswith("task.yaml:4: env.B: a text is due")


def test_networks() -> None:
    assert Network.disabled().wire() == {"access": "disabled"}
    assert Network.enabled().wire() == {"access": "enabled"}
    assert Network("restricted", ("a",)).wire() == {"access": "restricted", "allowed_domains": ["a"]}
    assert (Network.disabled().is_disabled, Network.enabled().is_disabled) == (True, False)
