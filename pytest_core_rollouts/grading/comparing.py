"""An answered value compared with an expected one: where they differ, under the task's rules for single keys.

The rules that hold where nothing else is said stand in `grading`. The work is linear in the size of both values; arrays
whose order is free are the exception, and their length is bounded (`UNORDERED_LIMIT`).
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import zip_longest
from typing import Any, Final, NamedTuple

MISSING: Final = "(missing)"
"""Stands in `Reason.answered` where the answer has no such key or element."""
NOTHING: Final = "(nothing)"
"""Stands in `Reason.expected` where an array of the answer goes on past its expected end."""
UNORDERED_LIMIT: Final = 500_000
"""Elements times size of an expected array whose order is free and whose elements need comparing in pairs."""

Path = tuple["str | int", ...]


@dataclass(frozen=True)
class Tolerance:
    """How far a number may be from the expected one, unless both are integers.

    By `relative` times the expected number, or by `absolute`, whichever allows more; what is not given is 0.
    Raises TypeError or ValueError for values that make no sense.
    """

    relative: float = 0.0
    absolute: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("relative", self.relative), ("absolute", self.absolute)):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"tolerance: {name} must be a number, not {value!r}")
            if not (0 <= value < math.inf):
                raise ValueError(f"tolerance: {name} must be finite and not negative, not {value!r}")
        if self.relative >= 1:
            raise ValueError(f"tolerance: relative must be below 1 (5 percent is 0.05), not {self.relative!r}")


DEFAULT_TOLERANCE: Final = Tolerance(relative=1e-6)


@dataclass(frozen=True)
class KeyRule:
    """What holds for one value and everything in it, in place of the rules for the whole answer.

    `tolerance` is for integers too; `exact` allows numbers no difference and texts none in white space or Unicode form;
    `ignore_case` compares texts case-folded. Two are about the value alone: with `unordered` an array's elements may
    come in any order, and each value of `one_of` is as right as the expected one.
    """

    tolerance: Tolerance | None = None
    exact: bool = False
    ignore_case: bool = False
    unordered: bool = False
    one_of: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Reason:
    """One place where the answer differs.

    `path` leads there from the top of the object: `regions.north[2]`, with keys that are no plain words in quotes:
    `totals["North East"]`. `expected` and `answered` are the whole values found there, or `NOTHING` and `MISSING`.
    """

    path: str
    expected: Any
    answered: Any


def differences(
    expected: Any, answered: Any, tolerance: Tolerance, rules: Mapping[Path, KeyRule] = {}
) -> Iterator[Reason]:
    """Every place where `answered` is not as expected; `rules` by paths into `expected`."""
    return _Comparison(rules).differences(expected, answered, (), _Manner(tolerance))


def render_path(path: Sequence[str | int]) -> str:
    """A path for people: `regions.north[2]`, `totals["North East"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(r"[^\W\d][\w-]*", step):
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step, ensure_ascii=not step.isprintable())}]"
    return text


def nfc(text: str) -> str:
    """The text in Unicode's composed form."""
    return unicodedata.normalize("NFC", text)


def is_plain(elements: Sequence[Any]) -> bool:
    """Whether elements can be compared in any order by counting alike ones, as long as no tolerance is for integers."""
    return all(isinstance(element, (str, bool, int, type(None))) for element in elements)


def size(value: Any) -> int:
    """How much there is to compare in a value: its single values and keys, long texts counting for several."""
    if isinstance(value, Mapping):
        return 1 + sum(1 + size(child) for child in value.values())
    if isinstance(value, list):
        return 1 + sum(map(size, value))
    return 1 + len(value) // 32 if isinstance(value, str) else 1


class _Manner(NamedTuple):
    """How values are compared at some place and, unless a rule says otherwise, in all that is below it."""

    tolerance: Tolerance
    spares_integers: bool = True
    exact: bool = False
    ignore_case: bool = False

    def under(self, rule: KeyRule) -> _Manner:
        if rule.exact:
            return _Manner(Tolerance(), exact=True)
        manner = self
        if rule.tolerance is not None:
            manner = manner._replace(tolerance=rule.tolerance, spares_integers=False)
        return manner._replace(ignore_case=True, exact=False) if rule.ignore_case else manner


_ABSENT: Final = object()


class _Comparison:
    """One answer compared; forms of its texts and keys are worked out once."""

    def __init__(self, rules: Mapping[Path, KeyRule]) -> None:
        self._rules = rules
        self._forms: dict[tuple[str, bool], str] = {}
        self._keys: dict[int, dict[str, str]] = {}

    def differences(self, expected: Any, answered: Any, path: Path, manner: _Manner) -> Iterator[Reason]:
        if (rule := self._rules.get(path)) is None:
            return self._below(expected, answered, path, manner)
        manner = manner.under(rule)
        if rule.one_of:
            return self._one_of([expected, *rule.one_of], answered, path, manner)
        if rule.unordered and isinstance(expected, list) and isinstance(answered, list):
            return self._in_any_order(expected, answered, path, manner)
        return self._below(expected, answered, path, manner)

    def _one_of(self, either: list[Any], answered: Any, path: Path, manner: _Manner) -> Iterator[Reason]:
        if not any(next(self._below(value, answered, path, manner), None) is None for value in either):
            yield Reason(render_path(path), {"one of": either}, _shown(answered))

    def _below(self, expected: Any, answered: Any, path: Path, manner: _Manner) -> Iterator[Reason]:
        if isinstance(expected, Mapping) and isinstance(answered, dict):
            for key, value in expected.items():
                yield from self.differences(value, self._value_of(key, answered, expected), (*path, key), manner)
        elif isinstance(expected, list) and isinstance(answered, list):
            for index, (value, other) in enumerate(zip_longest(expected, answered, fillvalue=_ABSENT)):
                yield from self.differences(value, other, (*path, index), manner)
        elif not self._match(expected, answered, manner):
            yield Reason(render_path(path), NOTHING if expected is _ABSENT else expected, _shown(answered))

    def _value_of(self, key: str, answered: dict[str, Any], expected: Mapping[str, Any]) -> Any:
        """The value of an answered object by an expected key: literally, else in NFC; `_ABSENT` for none."""
        if key in answered:
            return answered[key]
        if (keys := self._keys.get(id(answered))) is None:  # made when a key is missing, once: it may be a large object
            longest = _GROWTH * max(map(len, expected))
            unusual = (key for key in answered if not key.isascii() and len(key) <= longest)
            keys = self._keys[id(answered)] = {nfc(key): key for key in unusual}
        form = nfc(key)
        return answered.get(keys.get(form, form), _ABSENT)

    # ---- single values

    def _match(self, expected: Any, answered: Any, manner: _Manner) -> bool:
        """Whether two values that are not both objects or both arrays match. Types come first: True equals 1."""
        if isinstance(expected, bool) or isinstance(answered, bool) or expected is None:
            return expected is answered
        if isinstance(expected, str) and isinstance(answered, str):
            return self._match_text(expected, answered, manner)
        if isinstance(expected, (int, float)) and isinstance(answered, (int, float)):
            return _match_number(expected, answered, manner)
        return False

    def _match_text(self, expected: str, answered: str, manner: _Manner) -> bool:
        if expected == answered or manner.exact:
            return expected == answered
        expected, answered = expected.strip(), answered.strip()
        if expected == answered:
            return True
        if len(answered) > _GROWTH * len(expected):
            return False
        return self._form(expected, manner.ignore_case) == self._form(answered, manner.ignore_case)

    def _form(self, text: str, ignore_case: bool) -> str:
        if (form := self._forms.get((text, ignore_case))) is None:
            form = nfc(nfc(text).casefold()) if ignore_case else nfc(text)
            self._forms[text, ignore_case] = form
        return form

    # ---- arrays in any order

    def _in_any_order(self, expected: list[Any], answered: list[Any], path: Path, manner: _Manner) -> Iterator[Reason]:
        """Pair off as many elements as can be; what is left over on both sides differs."""
        own_rules = any((*path, index) in self._rules for index in range(len(expected)))
        if is_plain(expected) and manner.spares_integers and not own_rules:
            pairs = self._counted_off(expected, answered, manner)
        else:
            pairs = self._paired_off(expected, answered, path, manner)
        left = [index for index in range(len(expected)) if index not in pairs]
        taken = set(pairs.values())
        right = [index for index in range(len(answered)) if index not in taken]
        for this, other in zip_longest(left, right):
            yield Reason(
                render_path((*path, len(expected) if this is None else this)),
                NOTHING if this is None else expected[this],
                MISSING if other is None else answered[other],
            )

    def _counted_off(self, expected: list[Any], answered: list[Any], manner: _Manner) -> dict[int, int]:
        """Pairs of alike elements, by index: each is known by a token, so the order does not matter."""
        longest = _GROWTH * max((len(element) for element in expected if isinstance(element, str)), default=0)
        places: dict[Any, list[int]] = defaultdict(list)
        for index in range(len(answered) - 1, -1, -1):
            if (token := self._token(answered[index], manner, longest)) is not None:
                places[token].append(index)
        pairs = {}
        for index, element in enumerate(expected):
            if same := places.get(self._token(element, manner, longest)):
                pairs[index] = same.pop()
        return pairs

    def _token(self, value: Any, manner: _Manner, longest: int) -> Any:
        """What is equal for elements that match; None for what can match none."""
        if isinstance(value, str):
            if manner.exact:
                return "text", value
            stripped = value.strip()
            return ("text", self._form(stripped, manner.ignore_case)) if len(stripped) <= longest else None
        if value is None or isinstance(value, (bool, int, float)):
            kind = "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else "constant"
            return kind, value
        return None

    def _paired_off(self, expected: list[Any], answered: list[Any], path: Path, manner: _Manner) -> dict[int, int]:
        """The most pairs of matching elements, by index. Answered elements past twice the expected ones stay alone."""
        matches = [
            [
                other
                for other, value in enumerate(answered[: 2 * len(expected)])
                if next(self.differences(element, value, (*path, index), manner), None) is None
            ]
            for index, element in enumerate(expected)
        ]
        return _most_pairs(matches)


def _most_pairs(matches: Sequence[Sequence[int]]) -> dict[int, int]:
    """A maximum matching: `matches[left]` are the right ones that fit; gives left -> right (Hopcroft and Karp 1973)."""
    pairs: dict[int, int] = {}
    taken: dict[int, int] = {}
    while True:
        depth = {left: 0 for left in range(len(matches)) if left not in pairs}
        wave = list(depth)
        free = False
        while wave and not free:
            following = []
            for left in wave:
                for right in matches[left]:
                    if (owner := taken.get(right)) is None:
                        free = True
                    elif owner not in depth:
                        depth[owner] = depth[left] + 1
                        following.append(owner)
            wave = following
        if not free:
            return pairs
        for left in [left for left in range(len(matches)) if left not in pairs]:
            _augment(left, matches, depth, pairs, taken)


def _augment(
    start: int, matches: Sequence[Sequence[int]], depth: dict[int, int], pairs: dict[int, int], taken: dict[int, int]
) -> None:
    """Pair `start`, moving others along a shortest path, if there is one. No recursion: the path may be long."""
    way = [(start, iter(matches[start]))]
    chosen: list[int] = []
    while way:
        left, rest = way[-1]
        for right in rest:
            owner = taken.get(right)
            if owner is None:
                for (one, _), other in zip(way, [*chosen, right], strict=True):
                    pairs[one], taken[other] = other, one
                return
            if depth.get(owner) == depth[left] + 1:
                chosen.append(right)
                way.append((owner, iter(matches[owner])))
                break
        else:
            depth.pop(left)  # nothing goes on from here in this round
            way.pop()
            if chosen:
                chosen.pop()


def _shown(answered: Any) -> Any:
    return MISSING if answered is _ABSENT else answered


def _match_number(expected: Any, answered: Any, manner: _Manner) -> bool:
    if manner.spares_integers and isinstance(expected, int) and isinstance(answered, int):
        return expected == answered
    if any(number in (math.inf, -math.inf) or number != number for number in (expected, answered)):
        return False
    if expected == answered:
        return True
    wanted, tolerance = _decimal(expected), manner.tolerance
    allowed = max(_EXACT.multiply(_decimal(tolerance.relative), abs(wanted)), _decimal(tolerance.absolute))
    return abs(_EXACT.subtract(wanted, _decimal(answered))) <= allowed


_EXACT: Final = Context(prec=1000)  # digits enough for the difference of any two floats


def _decimal(number: Any) -> Decimal:
    return Decimal(repr(number) if isinstance(number, float) else number)


# Composing and folding make a text at most 3 times (each) and at least 1/4 as long. Texts further apart can't match,
# and are not normalized, since a long run of combining marks takes quadratic time.
_GROWTH: Final = 12
