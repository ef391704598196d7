"""Checked access to the members of a JSON object; every refusal names the member by its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import invalid
from .strict_json import kind


class Checked:
    """One JSON object of a request at `path` ("" for the body itself). All methods raise APIError (400) with `param`.

    Absent and null read as None everywhere but in `required_*`.
    """

    def __init__(self, value: Mapping[str, Any], path: str, known: Sequence[str]) -> None:
        self._value = value
        self.path = path
        for member in value:
            if member not in known:
                raise invalid(f"Unknown parameter: '{self.at(member)}'.", self.at(member))

    @classmethod
    def of(cls, value: Any, path: str, known: Sequence[str]) -> Checked:
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        return cls(value, path, known)

    def at(self, member: str) -> str:
        return f"{self.path}.{member}" if self.path else member

    def __contains__(self, member: str) -> bool:
        return member in self._value

    def get(self, member: str) -> Any:
        return self._value.get(member)

    def required(self, member: str) -> Any:
        if member not in self._value:
            raise invalid(f"Missing required parameter: '{self.at(member)}'.", self.at(member))
        return self._value[member]

    def required_text(self, member: str) -> str:
        return _text(self.required(member), self.at(member))

    def text(self, member: str) -> str | None:
        value = self.get(member)
        return None if value is None else _text(value, self.at(member))

    def flag(self, member: str) -> bool | None:
        value = self.get(member)
        if value is not None and not isinstance(value, bool):
            raise wrong_type(self.at(member), "a boolean", value)
        return value

    def positive(self, member: str) -> int | None:
        value = self.get(member)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(self.at(member), "an integer", value)
        if value < 1:
            message = (
                f"Invalid '{self.at(member)}': integer below minimum value. Expected a value >= 1, but got {value}."
            )
            raise invalid(message, self.at(member))
        return value

    def array(self, member: str) -> list[Any]:
        """An array's members; absent and null are the empty array."""
        value = self.get(member)
        if value is not None and not isinstance(value, list):
            raise wrong_type(self.at(member), "an array", value)
        return value or []

    def object(self, member: str, known: Sequence[str]) -> Checked:
        """A nested object; absent and null are the empty object."""
        value = self.get(member)
        return Checked.of({} if value is None else value, self.at(member), known)

    def mapping(self, member: str) -> dict[str, Any]:
        """A nested object with free keys; absent and null are the empty object."""
        value = self.get(member)
        if value is not None and not isinstance(value, dict):
            raise wrong_type(self.at(member), "an object", value)
        return value or {}

    def choice(self, member: str, choices: Sequence[str]) -> str | None:
        value = self.text(member)
        if value is not None and value not in choices:
            raise unknown_value(self.at(member), value, choices)
        return value


def wrong_type(path: str, expected: str, value: Any) -> Exception:
    return invalid(f"Invalid type for '{path}': expected {expected}, but got {kind(value)} instead.", path)


def unknown_value(path: str, value: str, choices: Sequence[str]) -> Exception:
    supported = ", ".join(f"'{choice}'" for choice in choices)
    shown = value if len(value) <= 256 and value.isprintable() else "(not shown)"
    return invalid(f"Invalid value: '{shown}'. Supported values are: {supported}.", path)


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    return value
