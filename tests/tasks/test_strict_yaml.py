from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.tasks.strict_yaml import (
    SIZE_LIMIT,
    Invalid,
    YamlError,
    check,
    describe,
    each,
    load_yaml,
    mapping,
    positive,
    positive_integer,
    render_key,
    text,
    texts,
)
from tests.support.tables import rows

FILE = Path("some.yaml")


def error_of(content: str | bytes) -> str:
    """The message for a file with this content."""
    with pytest.raises(YamlError) as caught:
        load_yaml(FILE, content.encode() if isinstance(content, str) else content)
    return str(caught.value)


def test_plain_data_is_read_as_it_looks() -> None:
    content = """
text: some words   # a comment
quoted: "10:00"
number: 42
minus: -7
point: 1.5
half: .5
small: 1.0e-6
yes_: true
no_: False
nothing:
tilde: ~
list: [a, 1, [b]]
block: |
  two
  lines
mapping:
  a: {b: c}
not_a_number: 1e3
"""
    assert load_yaml(FILE, content.encode()).values == {
        "text": "some words",
        "quoted": "10:00",
        "number": 42,
        "minus": -7,
        "point": 1.5,
        "half": 0.5,
        "small": 1e-6,
        "yes_": True,
        "no_": False,
        "nothing": None,
        "tilde": None,
        "list": ["a", 1, ["b"]],
        "block": "two\nlines\n",
        "mapping": {"a": {"b": "c"}},
        "not_a_number": "1e3",
    }


@rows("content", ["", "\n", "# nothing\n", "---\n", "\ufeff", "---\n...\n"])
def test_an_empty_file_is_an_empty_mapping(content: str) -> None:
    assert load_yaml(FILE, content.encode()).values == {}


def test_utf8_is_read_with_and_without_a_byte_order_mark() -> None:
    for prefix in ("", "\ufeff"):
        assert load_yaml(FILE, f"{prefix}k: é 🎈".encode()).values == {"k": "é 🎈"}


def test_line_endings_of_windows_are_read() -> None:
    assert load_yaml(FILE, b"a: 1\r\nb: [x,\r\n  y]\r\n").values == {"a": 1, "b": ["x", "y"]}


def test_every_key_and_element_has_its_line() -> None:
    file = load_yaml(FILE, b"\na: 1\nb:\n  c:\n    - x\n    - y\n")
    assert file.lines == {("a",): 2, ("b",): 3, ("b", "c"): 4, ("b", "c", 0): 5, ("b", "c", 1): 6}
    assert str(file.error("wrong", ("b", "c", 1))) == "some.yaml:6: b.c[1]: wrong"
    assert str(file.error("wrong", ("b", "c", 7))) == "some.yaml:4: b.c[7]: wrong"
    assert str(file.error("wrong")) == "some.yaml:1: wrong"


@rows(
    ("value", "problem"),
    [
        ("10:00", "10:00 is ambiguous: YAML reads it in base 60; write a plain number, or put a string in quotes"),
        ("1:30.5", "1:30.5 is ambiguous: YAML reads it in base 60; write a plain number, or put a string in quotes"),
        ("0123", "0123 is ambiguous as a number; write plain decimal digits, or put a string in quotes"),
        ("0x1F", "0x1F is ambiguous as a number; write plain decimal digits, or put a string in quotes"),
        ("0b11", "0b11 is ambiguous as a number; write plain decimal digits, or put a string in quotes"),
        ("1_000", "1_000 is ambiguous as a number; write plain decimal digits, or put a string in quotes"),
        ("01.5", "01.5 is ambiguous as a number; write plain decimal digits, or put a string in quotes"),
        (".nan", ".nan is not finite; write a plain number"),
        ("-.inf", "-.inf is not finite; write a plain number"),
        ("1.0e+999", "1.0e+999 is too large a number"),
        ("no", "YAML reads no as a boolean; put it in quotes if it is a string, or write true or false"),
        ("On", "YAML reads On as a boolean; put it in quotes if it is a string, or write true or false"),
        ("2026-01-31", "YAML reads 2026-01-31 as a date; put it in quotes if it is a string"),
        ("=", "YAML gives '=' a special meaning (tag:yaml.org,2002:value); put it in quotes, or remove the tag"),
        (
            "!!binary aGk=",
            "YAML gives 'aGk=' a special meaning (tag:yaml.org,2002:binary); put it in quotes, or remove the tag",
        ),
        (
            "!!python/object:os.system ls",
            "YAML gives 'ls' a special meaning (tag:yaml.org,2002:python/object:os.system)",
        ),
        (
            "!!python/object/apply:os.system [ls]",
            "the tag tag:yaml.org,2002:python/object/apply:os.system is not supported",
        ),
        ("!!set {a, b}", "the tag tag:yaml.org,2002:set is not supported; remove it"),
        ("!mine {a: b}", "the tag !mine is not supported; remove it"),
    ],
)
def test_what_yaml_reads_as_something_else_is_an_error(value: str, problem: str) -> None:
    assert error_of(f"\nk: {value}\n").startswith(f"some.yaml:2: k: {problem}")
    assert error_of(f"\nk:\n - {value}\n").startswith(f"some.yaml:3: k[0]: {problem}")


def test_a_number_of_any_length_is_an_error() -> None:
    assert error_of("k: " + "9" * 5000).startswith("some.yaml:1: k: 9999")


@rows(
    ("content", "message"),
    [
        ("a: 1\nb: 2\na: 3", "some.yaml:3: a: a duplicate key (first on line 1); remove one of the two"),
        ("o:\n  a: 1\n  a: 2", "some.yaml:3: o.a: a duplicate key (first on line 2); remove one of the two"),
        ("o: {a: 1, 'a': 2}", "some.yaml:1: o.a: a duplicate key (first on line 1); remove one of the two"),
        ("- a\n- b", "some.yaml:1: the file must hold `key: value` lines, not a list or a single value"),
        ("just text", "some.yaml:1: the file must hold `key: value` lines, not a list or a single value"),
        ("a:\n\tb: 1", "some.yaml:2: a tab where YAML allows none; indent with spaces"),
        ("a: &x [1]\nb: *x", "some.yaml:2: an alias (*) is not supported; write the value out"),
        ("a:\n - &x y\n - z\n - *x", "some.yaml:4: an alias (*) is not supported; write the value out"),
        ("a: &x [*x]", "some.yaml:1: an alias (*) is not supported; write the value out"),
        ("x: &x {k: 1}\na:\n  <<: *x", "some.yaml:3: an alias (*) is not supported; write the value out"),
        ("1: x", "some.yaml:1: the key 1 must be a string; put it in quotes"),
        ("o:\n  ~: x", "some.yaml:2: o: the key None must be a string; put it in quotes"),
        (
            "no: x",
            "some.yaml:1: YAML reads no as a boolean; put it in quotes if it is a string, or write true or false",
        ),
        ("? [a]\n: x", "some.yaml:1: the key ['a'] must be a string; put it in quotes"),
        ("a: 1\n---\nb: 2", "some.yaml:2: a second document begins here; one is read, so remove the line `---`"),
        ("a: 1\nb: [", "some.yaml:2: not valid YAML: "),
        ("a: b: c", "some.yaml:1: not valid YAML: mapping values are not allowed here; if a value holds"),
        ("a:\n  <<: {b: 1}", "some.yaml:2: a: a merge (<<) is not supported; write the values out"),
        ("a: 1\nb: \0", "some.yaml:2: the character U+0000 is not allowed; remove it"),
        (b"a: 1\nb: \xe9", "some.yaml:2: byte 8 is not UTF-8; save the file as UTF-8"),
        ("a: 1 #" + "x" * SIZE_LIMIT, "some.yaml:1: the file has 1,048,582 bytes; at most 1,048,576 are read"),
        ("a: " + "[" * 5000 + "]" * 5000, "some.yaml:1: nested too deeply; a few levels are enough"),
    ],
)
def test_a_faulty_file_is_an_error_with_its_line(content: str | bytes, message: str) -> None:
    assert error_of(content).startswith(message)


def test_errors_are_one_line() -> None:
    assert "\n" not in error_of("a: {b: [")


# Rules


@rows(
    ("value", "problem"),
    [
        ("60", "expected a number, got '60'; remove the quotes"),
        ("60s", "expected a number, got '60s'; write it without a unit"),
        ("1e3", "expected a number, got '1e3'; YAML needs a point and a sign with an exponent"),
        (None, "expected a number, got nothing; remove the key to use the default"),
        (True, "expected a number, got true"),
        ([1], "expected a number, got a list"),
        (-5, "expected a number above 0, got -5"),
        (0, "expected a number above 0, got 0"),
        (math.nan, "expected a number above 0, got nan"),
        (math.inf, "expected a number above 0, got inf"),
    ],
)
def test_positive(value: Any, problem: str) -> None:
    with pytest.raises(Invalid) as caught:
        positive(value)
    assert caught.value.problem.startswith(problem)
    assert positive(3) == 3.0


@rows("value", [0, -1, 1.0, 1.5, True, "1", None])
def test_positive_integer(value: Any) -> None:
    with pytest.raises(Invalid, match="integer"):
        positive_integer(value)
    assert positive_integer(1) == 1


@rows(
    ("value", "problem"),
    [
        (1.1, "expected a string, got 1.1; put it in quotes"),
        (False, "expected a string, got false; put it in quotes"),
        (None, "expected a string, got nothing; fill it in, or remove the key"),
        (["a"], "expected a string, got a list"),
        ({"a": 1}, "expected a string, got a mapping"),
        (" \n", "must not be blank"),
        ("a\0b", "the string contains a NUL character; remove it"),
        ("a\ud835", "the string contains a lone surrogate, which is not a character; remove it"),
    ],
)
def test_text(value: Any, problem: str) -> None:
    with pytest.raises(Invalid) as caught:
        text(value)
    assert caught.value.problem == problem
    assert text(" é ") == " é "


def test_texts() -> None:
    assert texts(["a", "b"]) == texts(("a", "b")) == ("a", "b")
    with pytest.raises(Invalid, match=r"expected a list of strings, got 'ab'; write it as \[a, b\]"):
        texts("ab")
    with pytest.raises(Invalid) as caught:
        texts(["a", 1])
    assert str(caught.value) == "[1]: expected a string, got 1; put it in quotes"


@rows("value", [None, [], "a", {1: 2}])
def test_mapping(value: Any) -> None:
    with pytest.raises(Invalid, match="expected a mapping of names to values"):
        mapping(value)


def test_a_broken_rule_is_named_by_key_and_line() -> None:
    rules = {"deep": lambda value: check(mapping(value), {"list": each(positive)}), "other": text}
    file = load_yaml(FILE, b"other: x\ndeep:\n  list:\n    - 1\n    - -1\n")
    with pytest.raises(YamlError) as caught:
        file.checked(rules)
    assert str(caught.value) == "some.yaml:5: deep.list[1]: expected a number above 0, got -1"
    assert load_yaml(FILE, b"deep: {list: [1]}").checked(rules) == {"deep": {"list": [1.0]}}


def test_an_unknown_key_suggests_a_close_one() -> None:
    rules = {"timeout": positive, "tags": texts}
    for content, advice in (("timout: 1", "did you mean timeout?"), ("zzz: 1", "known keys are timeout, tags")):
        with pytest.raises(YamlError) as caught:
            load_yaml(FILE, content.encode()).checked(rules)
        assert str(caught.value) == f"some.yaml:1: {content[:-3]}: unknown key; {advice}"


def test_words_for_people() -> None:
    assert render_key(("a", "b", 0, "c")) == "a.b[0].c"
    assert render_key((0,)) == "[0]"
    assert describe(b"x") == "a value of type bytes"
    assert describe("x" * 100) == repr("x" * 60)
