"""Grading compared with an independent reference, on random pairs of expected and answered values."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections import Counter
from typing import Any

import pytest

from pytest_core_rollouts.grading.answers import read_answer
from pytest_core_rollouts.strict_json import parse_json
from pytest_core_rollouts.tasks.files import TaskError
from pytest_core_rollouts.tasks.task import Task
from tests.support.reference_grader import reference_reward

KEYS = ["a", "b", "total", "North East", "caf\u00e9", "x.y", "*", "0"]
TEXTS = [
    "",
    "x",
    "Red",
    "caf\u00e9",
    "Stra\u00dfe",
    "\u212b",
    "\ufb01x",
    "I\u0307",
    "\u03a3\u03c2",
    "10",
    "UK",
    "\ud835",
]
NUMBERS = [0, 1, 2, 7, 10, 100, 1000000, 2500001, 10**15, 2**53 + 1, 10**22, 0.1, 0.5, 1.5, 3.14159, 99.5, 1e-7, 1e100]
SHIFTS = [0, 1e-9, 5e-7, 1e-6, 1.1e-6, 0.001, 0.01, 0.011, 0.1, 0.5]


class Pairs:
    """Makes tasks and answers to them; some are right."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def value(self, depth: int = 0) -> Any:
        kind = self.random.choices(["number", "text", "other", "array", "object"], [5, 4, 1, 3 - depth, 3 - depth])[0]
        if kind == "number":
            return self.random.choice([1, 1, -1]) * self.random.choice(NUMBERS)
        if kind == "text":
            return self.random.choice(TEXTS)
        if kind == "other":
            return self.random.choice([None, True, False])
        if kind == "array" and self.chance(0.4):  # numbers that are near to each other
            first = self.random.choice([0, 7, 10, 10.5])
            return [first + self.random.randrange(3) for _ in range(self.random.randint(2, 4))]
        if kind == "array":
            same = self.chance(0.3) and self.value(depth + 1)
            return [same or self.value(depth + 1) for _ in range(self.random.randrange(5))]
        return {key: self.value(depth + 1) for key in self.random.sample(KEYS, self.random.randrange(4))}

    def expected(self) -> dict[str, Any]:
        return {key: self.value(1) for key in self.random.sample(KEYS, self.random.randint(1, 3))}

    # ---- rules

    def rules(self, expected: Any) -> dict[str, dict[str, Any]]:
        """Up to three rules that can apply to their values."""
        found: dict[str, dict[str, Any]] = {}
        paths = list(_places(expected))[1:]
        for path, value in self.random.sample(paths, min(len(paths), self.random.choice([0, 0, 1, 1, 2, 3]))):
            steps = [self.step(step) for step in path]
            rule = self.rule(value)
            found["".join(steps).removeprefix(".")] = rule
        return found

    def step(self, step: str | int) -> str:
        wild = self.chance(0.2)
        if isinstance(step, int):
            return "[*]" if wild else f"[{step}]"
        if wild:
            return ".*"
        return f".{step}" if step in ("a", "b", "total") and self.chance(0.8) else f"[{json.dumps(step)}]"

    def rule(self, value: Any) -> dict[str, Any]:
        rule: dict[str, Any] = {}
        if self.chance(0.4):
            rule |= self.random.choice([{"exact": True}, {"ignore_case": True}, self.tolerance(), self.tolerance()])
        if isinstance(value, list) and self.chance(0.8):
            rule["unordered"] = True
        if not rule or self.chance(0.2):
            rule["one_of"] = [self.changed(value) if self.chance(0.5) else self.value(2) for _ in "ab"]
        return rule

    def tolerance(self) -> dict[str, float]:
        return self.random.choice(
            [{"relative": 0.01}, {"absolute": 0.5}, {"absolute": 1}, {"relative": 1e-6, "absolute": 2}]
        )

    # ---- answers

    def answer(self, expected: Any, rules: dict[str, dict[str, Any]]) -> Any:
        """Most answers change a few values in ways that grading may ignore; others anything."""
        if self.chance(0.03):
            return self.value()
        rate = self.random.choice([0, 0.1, 0.1, 0.3])
        alternatives = [value for rule in rules.values() for value in rule.get("one_of", ())]
        return self.varied(expected, rate, alternatives, shuffle=any("unordered" in rule for rule in rules.values()))

    def varied(self, value: Any, rate: float, alternatives: list[Any], shuffle: bool) -> Any:
        if self.chance(rate):
            value = self.changed(value)
        elif alternatives and self.chance(0.15):
            value, alternatives = self.random.choice(alternatives), []
        if isinstance(value, dict):
            items = [(self.form(key), self.varied(inner, rate, alternatives, shuffle)) for key, inner in value.items()]
            if self.chance(0.3):
                items.append((self.random.choice([*KEYS, "more"]), self.value(2)))
            self.random.shuffle(items)
            return dict(reversed(items))
        if isinstance(value, list):
            varied = [self.varied(inner, rate, alternatives, shuffle) for inner in value]
            if self.chance(0.2):
                shifts = [0, 0, 0.4, 1, 1.0, 1.5]
                varied = [inner + self.random.choice(shifts) if type(inner) is int else inner for inner in varied]
            if shuffle and self.chance(0.7):
                self.random.shuffle(varied)
            return varied
        return value

    def form(self, text: str) -> str:
        return unicodedata.normalize(self.random.choice(["NFC", "NFD"]), text) if self.chance(0.5) else text

    def changed(self, value: Any) -> Any:
        """A value near this one, which is right or wrong as the rules have it."""
        if isinstance(value, bool) or value is None:
            return self.random.choice([None, True, False, 0, 1, "true"])
        if isinstance(value, (int, float)):
            shifted = value * (1 + self.random.choice([1, -1]) * self.random.choice(SHIFTS))
            near = value + self.random.choice([-2, -1, -0.5, 0.5, 1, 2])
            return self.random.choice([shifted, shifted, near, float(value), -value, str(value), bool(value)])
        if isinstance(value, str):
            ways = [
                value + " ",
                f"\n{value}",
                value.upper(),
                value.lower(),
                value.casefold(),
                value + "x",
                self.form(value),
            ]
            forms = [unicodedata.normalize(form, value) for form in ("NFC", "NFD", "NFKC")]
            return self.random.choice([*ways, *forms, [value], None])
        if isinstance(value, list):
            changes = [value[1:], [*value, self.value(2)], value[::-1], [*value[:1], *value[:1], *value[2:]]]
            return self.random.choice([*changes, {str(index): inner for index, inner in enumerate(value)}, None])
        keys = list(value)
        return self.random.choice([{key: value[key] for key in keys[1:]}, list(value.values()), {}, value])

    # ---- text

    def spoiled(self, text: str) -> bytes:
        """An answer's bytes: a few of them are not strict JSON, or have a byte order mark."""
        whole, open_end = text.encode(), text[:-1].encode()
        ways = [
            *(b"\xef\xbb\xbf" + whole, b" \n" + whole + b"\t", b"[" + whole + b"]", b"```json\n" + whole + b"\n```"),
            *(open_end + b",}", open_end, whole + b"\xff", whole + whole, b""),
            *(b'{"n": %b, ' % value + whole[1:] for value in (b"NaN", b"-Infinity", b"1e400", b"01", b"1.", b"'x'")),
            *(b'{"n": %b, "n": 1, ' % value + whole[1:] for value in (b"1", b"2")),
            *(b'{"n": %b, ' % (b"[" * levels + b"]" * levels) + whole[1:] for levels in (99, 100)),
        ]
        return self.random.choice(ways) if self.chance(0.03) and len(text) > 2 else whole

    def written(self, value: Any) -> str:
        """JSON in which numbers and texts are written in one of the ways there are."""
        if isinstance(value, dict):
            return (
                "{"
                + ", ".join(f"{self.written(str(key))}: {self.written(inner)}" for key, inner in value.items())
                + "}"
            )
        if isinstance(value, list):
            return "[" + ",".join(map(self.written, value)) + "]"
        if isinstance(value, str) and not any("\ud800" <= mark <= "\udfff" for mark in value):
            return json.dumps(value, ensure_ascii=self.chance(0.5))
        if isinstance(value, (bool, str)) or value is None:
            return json.dumps(value)
        return self.number(value)

    def number(self, number: float) -> str:
        plain = json.dumps(number)
        if isinstance(number, int):
            digits = f"{abs(number)}0"
            scientific = f"{'-' * (number < 0)}{digits[0]}.{digits[1:]}e{len(digits) - 2}"
            return self.random.choice(
                [plain] * 4 + [f"{number}.0", f"{number}.000", f"{number}e0", f"{number * 10}E-1", scientific]
            )
        return self.random.choice(
            [plain, plain, f"{number!r}0" if "e" not in plain else plain.upper(), f"{number:.17e}"]
        )


def _places(value: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in inner:
        yield from _places(child, (*path, step))


@pytest.mark.parametrize(("seed", "pairs"), [(1, 2_000), pytest.param(2, 20_000, marks=pytest.mark.slow)])
def test_rewards_are_those_of_an_independent_reference(seed: int, pairs: int) -> None:
    made, seen = Pairs(seed), Counter[tuple[bool, float]]()
    while seen.total() < pairs:
        expected = made.written(made.expected())
        rules = made.rules(json.loads(expected))
        tolerance = made.tolerance() if made.chance(0.4) else None
        settings: dict[str, Any] = {"grading": rules} | ({} if tolerance is None else {"tolerance": tolerance})
        try:
            task = Task(id="a", instruction="x", expected=parse_json(expected.encode()), **settings)
        except TaskError as error:
            if not re.search(r"grading.*(needs? a (number|string)|needs an array|the same path)", str(error)):
                raise
            continue
        answer = made.spoiled(made.written(made.answer(task.expected, rules)))
        grade = task.grade(read_answer(answer))
        assert grade.reward == reference_reward(expected, answer, tolerance, rules), (
            expected, rules, tolerance, answer, grade
        )  # fmt: skip
        assert (grade.reward == 1) == (not grade.reasons and grade.note is None)
        seen[bool(rules), grade.reward] += 1
    assert min(seen[ruled, reward] for ruled in (False, True) for reward in (0.0, 1.0)) > pairs / 20, seen
