"""YAML without surprises, and values checked by rules, with errors that name the file, the key and the line.

Only plain data is accepted: mappings with string keys, lists, strings, decimal numbers, true, false and null. Whatever
YAML 1.1 reads as something other than it looks like is an error that says how to write it: `10:00` (600), `0123` (83),
`no` (false), `2026-01-31` (a date), `.nan`; so are tags, aliases and duplicate keys.

A rule is a function that returns a value as it is stored, or raises `Invalid`. Rules know nothing of files, so that
they also check values made in code.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import yaml

Key = tuple["str | int", ...]
"""Where a value is: `("tolerance", "relative")`, `("tags", 0)`."""
Rule = Callable[[Any], Any]

SIZE_LIMIT: Final = 1024 * 1024


class YamlError(ValueError):
    """A file that can't be used. `str()` is `path:line: key: what is wrong; what to do`."""


class Invalid(ValueError):
    """A value that breaks a rule. `str()` is `key: what is wrong; what to do`."""

    def __init__(self, problem: str, key: Key = ()) -> None:
        self.problem, self.key = problem, key
        super().__init__(f"{render_key(key)}: {problem}" if key else problem)

    def within(self, *outer: str | int) -> Invalid:
        """The same, seen from further out."""
        return Invalid(self.problem, (*outer, *self.key))


def render_key(key: Key) -> str:
    """`tolerance.relative`, `tags[0]`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in key).removeprefix(".")


@dataclass(frozen=True)
class YamlFile:
    """A file's mapping (empty for an empty file), and the line of each key and element in it."""

    path: Path
    values: dict[str, Any]
    lines: Mapping[Key, int] = field(repr=False)

    def error(self, problem: str, key: Key = ()) -> YamlError:
        """An error about the value at `key`."""
        line = next((self.lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.lines), 1)
        return YamlError(f"{self.path}:{line}: {Invalid(problem, key)}")

    def checked(self, rules: Mapping[str, Rule]) -> dict[str, Any]:
        """The values as the rules of their keys return them; YamlError for an unknown key or a broken rule."""
        try:
            return check(self.values, rules)
        except Invalid as invalid:
            raise self.error(invalid.problem, invalid.key) from None


def load_yaml(path: Path, content: bytes) -> YamlFile:
    """Parse the content of a file; `path` is for messages. Raises YamlError."""
    import yaml

    if len(content) > SIZE_LIMIT:
        raise YamlError(f"{path}:1: the file has {len(content):,} bytes; at most {SIZE_LIMIT:,} are read")
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise YamlError(f"{path}:{line}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    try:
        root = yaml.compose(text, Loader=_loader())
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(
            f"{path}:{line}: the character U+{int(error.character):04X} is not allowed; remove it"
        ) from None
    except yaml.MarkedYAMLError as error:
        raise YamlError(f"{path}:{_line_of(error)}: {_syntax_problem(error)}") from None
    except RecursionError:
        raise YamlError(f"{path}:1: nested too deeply; a few levels are enough") from None
    return _Reading(path).file(root)


@cache
def _loader() -> type[yaml.SafeLoader]:
    """A loader without aliases: they share and multiply nodes, and could make a small file endless."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise yaml.composer.ComposerError(problem=_ALIAS, problem_mark=mark)
            return super().compose_node(parent, index)

    return Loader


_ALIAS: Final = "an alias (*) is not supported; write the value out"


def _line_of(error: yaml.MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return int(mark.line) + 1 if mark else 1


def _syntax_problem(error: yaml.MarkedYAMLError) -> str:
    problem = " ".join(filter(None, (error.context, error.problem)))
    if problem == _ALIAS:
        return problem
    if "'\\t'" in problem:
        return "a tab where YAML allows none; indent with spaces"
    if "single document" in problem:
        return "a second document begins here; one is read, so remove the line `---`"
    return f"not valid YAML: {problem}; if a value holds special characters, put it in quotes"


class _Reading:
    """Turns the nodes of one file into plain values, and notes the lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[Key, int] = {}

    def file(self, root: yaml.Node | None) -> YamlFile:
        import yaml

        if root is None or (root.tag == _NULL and not root.value):
            return YamlFile(self._path, {}, {})
        if not isinstance(root, yaml.MappingNode):
            raise self._error(root, (), "the file must hold `key: value` lines, not a list or a single value")
        return YamlFile(self._path, self._value(root, ()), self._lines)

    def _value(self, node: yaml.Node, key: Key) -> Any:
        import yaml

        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return self._mapping(node, key)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            elements = [((*key, index), child) for index, child in enumerate(node.value)]
            self._lines.update((inner, _line(child)) for inner, child in elements)
            return [self._value(child, inner) for inner, child in elements]
        if isinstance(node, yaml.ScalarNode):
            try:
                return _scalar(node.tag, node.value)
            except Invalid as invalid:
                raise self._error(node, key, invalid.problem) from None
        raise self._error(node, key, f"the tag {node.tag} is not supported; remove it")

    def _mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name_node, node_value in node.value:
            if name_node.tag == _MERGE:
                raise self._error(name_node, key, "a merge (<<) is not supported; write the values out")
            name = self._value(name_node, key)
            if not isinstance(name, str):
                raise self._error(name_node, key, f"the key {name!r} must be a string; put it in quotes")
            inner = (*key, name)
            if name in result:
                first = self._lines[inner]
                raise self._error(name_node, inner, f"a duplicate key (first on line {first}); remove one of the two")
            self._lines[inner] = _line(name_node)
            result[name] = self._value(node_value, inner)
        return result

    def _error(self, node: yaml.Node, key: Key, problem: str) -> YamlError:
        return YamlError(f"{self._path}:{_line(node)}: {Invalid(problem, key)}")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


_NULL: Final = "tag:yaml.org,2002:null"
_MERGE: Final = "tag:yaml.org,2002:merge"


def _scalar(tag: str, text: str) -> Any:
    kind = tag.removeprefix("tag:yaml.org,2002:")
    if kind == "str":
        return text
    if kind == "null":
        return None
    if kind == "bool":
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise Invalid(f"YAML reads {text} as a boolean; put it in quotes if it is a string, or write true or false")
    if kind in ("int", "float"):
        return _number(text)
    if kind == "timestamp":
        raise Invalid(f"YAML reads {text} as a date; put it in quotes if it is a string")
    raise Invalid(f"YAML gives {text[:50]!r} a special meaning ({tag}); put it in quotes, or remove the tag")


def _number(text: str) -> int | float:
    if ":" in text:
        raise Invalid(f"{text} is ambiguous: YAML reads it in base 60; write a plain number, or put a string in quotes")
    if re.fullmatch(r"[-+]?(0|[1-9][0-9]{0,307})", text):
        return int(text)
    if re.fullmatch(r"[-+]?((0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?", text):
        if math.isfinite(number := float(text)):
            return number
        raise Invalid(f"{text} is too large a number")
    if text.lower().lstrip("+-") in (".inf", ".nan"):
        raise Invalid(f"{text} is not finite; write a plain number")
    raise Invalid(f"{text[:50]} is ambiguous as a number; write plain decimal digits, or put a string in quotes")


# Rules


def check(values: Mapping[str, Any], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return every value as the rule of its key returns it. Raises Invalid, with the key, also for an unknown key."""
    result = {}
    for name, value in values.items():
        if name not in rules:
            raise Invalid(f"unknown key; {_advice(name, rules)}", (name,))
        try:
            result[name] = rules[name](value)
        except Invalid as invalid:
            raise invalid.within(name) from None
    return result


def _advice(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known keys are {', '.join(known)}"


def text(value: Any) -> str:
    """A string that is not blank and can be sent."""
    if not isinstance(value, str):
        raise Invalid(f"expected a string, got {describe(value)}{_as_text(value)}")
    if not value.strip():
        raise Invalid("must not be blank")
    return sendable(value)


def _as_text(value: Any) -> str:
    if value is None:
        return "; fill it in, or remove the key"
    return "" if _is_tree(value) else "; put it in quotes"


def sendable(value: str) -> str:
    """A string, maybe empty, that UTF-8 can encode and that has no NUL."""
    if "\0" in value:
        raise Invalid("the string contains a NUL character; remove it")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise Invalid("the string contains a lone surrogate, which is not a character; remove it") from None
    return value


def texts(value: Any) -> tuple[str, ...]:
    """A list (or tuple) of strings."""
    if not isinstance(value, (list, tuple)):
        raise Invalid(f"expected a list of strings, got {describe(value)}; write it as [a, b]")
    return tuple(each(text)(value))


def each(rule: Rule) -> Callable[[Iterable[Any]], list[Any]]:
    """The rule that applies `rule` to every element."""

    def checked(values: Iterable[Any]) -> list[Any]:
        result = []
        for index, value in enumerate(values):
            try:
                result.append(rule(value))
            except Invalid as invalid:
                raise invalid.within(index) from None
        return result

    return checked


def positive(value: Any) -> float:
    """A finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Invalid(f"expected a number, got {describe(value)}{_as_number(value)}")
    if not 0 < value < math.inf:
        raise Invalid(f"expected a number above 0, got {value!r}")
    return float(value)


def positive_integer(value: Any) -> int:
    """A positive integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Invalid(f"expected an integer, got {describe(value)}{_as_number(value)}")
    if value < 1:
        raise Invalid(f"expected a positive integer, got {value}")
    return value


def _as_number(value: Any) -> str:
    """Return advice for a string that was meant as a number: `1e3` and `1e-6` are strings in YAML."""
    if isinstance(value, str) and re.fullmatch(r"\s*[-+]?[0-9.]+([eE][-+]?[0-9]+)?\s*", value):
        if "e" in value.lower():
            return "; YAML needs a point and a sign with an exponent, as in 1.0e+3 or 1.0e-6"
        return "; remove the quotes"
    return "; remove the key to use the default" if value is None else "; write it without a unit"


def mapping(value: Any) -> dict[str, Any]:
    """A mapping with string keys."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise Invalid(f"expected a mapping of names to values, got {describe(value)}; write it as {{name: value}}")
    return dict(value)


def describe(value: Any) -> str:
    """Return a value as a message shows it: `5`, `'30s'`, `a list`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return repr(value[:60])
    if _is_tree(value):
        return "a mapping" if isinstance(value, Mapping) else "a list"
    return f"a value of type {type(value).__name__}"


def _is_tree(value: Any) -> bool:
    return isinstance(value, (Mapping, list, tuple))
