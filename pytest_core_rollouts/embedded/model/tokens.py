"""Token ids and log probabilities, wherever in a reply the inference servers put them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tokens:
    """What a reply tells of its tokens; None: not told. `logprobs` are those of the sampled tokens, in order."""

    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None


_PROMPT = ("prompt_token_ids", "input_token_ids")
_SAMPLED = ("token_ids", "output_token_ids", "completion_token_ids", "output_ids")
_NAMED = re.compile(r"token_id:(\d+)")


def tokens_of(reply: Any) -> Tokens:
    """Found by name: `token_ids` and `prompt_token_ids` (vLLM), `output_token_logprobs` (SGLang), `logprobs` (all).

    Of several choices the first one counts.
    """
    found = _Found()
    found.look_into(reply)
    ids = found.ids or [id for id, _ in found.pairs if id is not None]
    whole = ids if found.ids or len(ids) == len(found.pairs) else []
    return Tokens(found.prompt, whole or None, [logprob for _, logprob in found.pairs] or None)


class _Found:
    def __init__(self) -> None:
        self.prompt: list[int] | None = None
        self.ids: list[int] = []
        self.pairs: list[tuple[int | None, float]] = []

    def look_into(self, value: Any) -> None:
        if isinstance(value, list):
            for member in value:
                self.look_into(member)
        if not isinstance(value, dict):
            return
        for name, member in value.items():
            if name in _PROMPT and self.prompt is None and _is_ids(member):
                self.prompt = member
            elif name in _SAMPLED and _is_ids(member):
                self.ids += member
            elif name == "output_token_logprobs" and isinstance(member, list):
                self.pairs += _sglang_pairs(member)
            elif name == "logprobs":
                self.pairs += _pairs(member)
            elif name == "choices" and isinstance(member, list):
                self.look_into(member[:1])
            elif not name.endswith("logprobs"):
                self.look_into(member)


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(member) is int for member in value)


def _pairs(value: Any) -> Iterator[tuple[int | None, float]]:
    """Of a list of {token, logprob}, of {content: such a list}, or of the older {tokens, token_logprobs}."""
    if isinstance(value, dict) and isinstance(logprobs := value.get("token_logprobs"), list):
        tokens = value.get("tokens") or []
        for index, logprob in enumerate(logprobs):
            yield _id_in(tokens[index]) if index < len(tokens) else None, _number(logprob)
        return
    entries = value.get("content") if isinstance(value, dict) else value
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and "logprob" in entry:
            id = entry.get("token_id")
            yield id if type(id) is int else _id_in(entry.get("token")), _number(entry["logprob"])


def _sglang_pairs(entries: list[Any]) -> Iterator[tuple[int | None, float]]:
    for entry in entries:
        if isinstance(entry, list) and len(entry) >= 2:
            yield entry[1] if type(entry[1]) is int else None, _number(entry[0])


def _id_in(token: Any) -> int | None:
    """The id in a token that is named by it, as vLLM does when asked to."""
    match = _NAMED.fullmatch(token) if isinstance(token, str) else None
    return int(match[1]) if match else None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
