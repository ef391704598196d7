"""Known secrets, masked by their value wherever they stand."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from pytest_core_rollouts.secret_values import is_secret

if TYPE_CHECKING:
    from pytest_core_rollouts.grading.answers import Grade

MASK = "[masked]"

_CREDENTIAL = (
    r"(?:api[-_]?key|authorization|access[-_]?token|auth[-_]?token|bearer[-_]?token|client[-_]?secret|secret[-_]?key"
    r"|password)"
)
_FIELD = re.compile(rf"(?i)(?:.*[-_])?{_CREDENTIAL}")
"""Names of fields and headers whose value is a credential, of any server."""
_SPOKEN = re.compile(
    rf"(?i)((?:\b|[-_]){_CREDENTIAL}[\"']?\s*[:=]\s*[\"']?)((?:bearer|basic)\s+)?([^\s\"',;]{{8,}})|(\bbearer\s+)([\w.~+/=-]{{16,}})"
)
"""The same in the text of a message: `x-api-key: ...`, `"api_key": "..."`, `Bearer ...`."""


class Masker:
    """Replaces known secrets with `[masked]` in text and in JSON data.

    Takes the secrets themselves; those that are None, shorter than 8 characters or a well-known stand-in (`EMPTY`,
    `dummy`, `sk-placeholder`, `xxxxxxxx` and the like, in any case) are left out. A secret is found inside longer
    strings too, and also where it is written as in JSON text, percent-encoded, or in base64 at any offset
    (`Basic` credentials). Other encodings (hex, reversed, cut in two) are not recognized.
    """

    def __init__(self, secrets: Iterable[str | None]) -> None:
        known = {secret.strip() for secret in secrets if secret}
        forms = {form for secret in known if is_secret(secret) for form in _forms(secret)}
        self._forms = sorted(forms, key=lambda form: (-len(form), form))  # longest first: one may be part of another

    def text(self, text: str) -> str:
        """`text` with every known secret replaced."""
        for form in self._forms:
            text = text.replace(form, MASK)
        return text

    def message(self, text: str) -> str:
        """The same for what servers and programs say: credentials that we do not know are found by their field, too."""
        return _SPOKEN.sub(_spoken, self.text(text))

    def trajectory(self, value: Any) -> Any:
        """`data` for what is only read and never graded: the values of fields that hold credentials are masked, too."""
        if isinstance(value, dict):
            return {self.text(key): self._member(key, item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.trajectory(item) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def _member(self, key: str, value: Any) -> Any:
        holds = isinstance(value, str) and value and _FIELD.fullmatch(key)
        return MASK if holds else self.trajectory(value)

    def bytes(self, data: bytes) -> bytes:
        """The same for a file's content, whatever it is."""
        text = data.decode("utf-8", "surrogateescape")
        masked = self.text(text)
        return data if masked == text else masked.encode("utf-8", "surrogateescape")

    def data(self, value: Any) -> Any:
        """JSON data (dicts, lists, strings, numbers) with every secret replaced, in keys and in values."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.data(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(item) for item in value]
        return value


def _spoken(match: re.Match[str]) -> str:
    field, scheme, _, bearer, _ = match.groups()
    return f"{bearer}{MASK}" if field is None else f"{field}{scheme or ''}{MASK}"


def is_credential(field: str) -> bool:
    """Whether a field or header of this name holds a credential."""
    return _FIELD.fullmatch(field) is not None


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield quote(secret, safe="", errors="replace")
    yield quote(secret, errors="replace")
    yield quote_plus(secret, errors="replace")
    data = secret.encode("utf-8", "replace")
    for offset in range(3):
        # Characters that also hold bits of a neighbouring byte differ from place to place: leave them out.
        first = -(-offset * 4 // 3)
        last = (offset + len(data)) * 4 // 3
        inner = base64.b64encode(bytes(offset) + data)[first:last].decode()
        yield inner
        yield inner.replace("+", "-").replace("/", "_")


# What `--rollout-hide-expected` leaves out

HIDDEN = "(hidden)"
"""Stands in a row for what was expected."""


class Withheld(Exception):
    """Stands for what a grader raised, with the place where it did; `str()` only shows its type."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}, its text left out (--rollout-hide-expected)")
        self.__traceback__ = error.__traceback__


def hide_reasons(reasons: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The reasons of a row without what was expected."""
    return [{**reason, "expected": HIDDEN} for reason in reasons]


def hide_note(grade: Grade) -> Grade:
    """A grade without a note of the grader's own."""
    return grade if grade.note is None else replace(grade, note=f"the grader's note is {HIDDEN}")
