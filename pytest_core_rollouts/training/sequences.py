"""The model requests of a rollout as flat token sequences, which trainers take.

An agent asks its model several times, and each prompt repeats what came before. Two requests are one sequence only if
the later prompt begins with exactly the tokens so far: otherwise a policy would be trained on tokens that it did not
sample. Where they differ (a compacted history, a sub-agent, a text that was tokenized again) another sequence starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_core_rollouts.training.captures import check_tokens


@dataclass(frozen=True)
class Sequence:
    """Tokens that a model saw and sampled, in order. All lists have one length.

    * `input_ids`: ids of all tokens.
    * `loss_mask`: 1 for each token that the model sampled, 0 for the others.
    * `logprobs`: log probabilities (natural logarithm) of the sampled tokens, 0.0 for the others. Empty if the server
      returned none for one of the requests.
    """

    input_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]


def sequences(exchanges: Iterable[Mapping[str, Any]]) -> list[Sequence]:
    """Return the requests of one rollout as token sequences, in the order in which each sequence started.

    * `exchanges`: the successful requests in their order, as `export --format groups --capture` writes them: mappings
      with `prompt_token_ids`, `token_ids` and, if the server returns them, `logprobs`.

    Every request is in exactly one sequence: it extends the longest one with which its prompt begins. So each sampled
    token is in the result exactly once.

    Raises CaptureError for a request without token ids, or with another number of log probabilities than tokens.
    """
    started: list[_Open] = []
    for number, exchange in enumerate(exchanges, 1):
        check_tokens(exchange, f"request {number}")
        prompt: list[int] = exchange["prompt_token_ids"]
        longest = max((one for one in started if one.begins(prompt)), key=lambda one: len(one.ids), default=None)
        if longest is None:
            longest = _Open()
            started.append(longest)
        longest.add(prompt, exchange["token_ids"], exchange.get("logprobs") or [])
    return [one.closed() for one in started]


class _Open:
    """A sequence that may still grow."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float] = []
        self._has_logprobs = True

    def begins(self, prompt: list[int]) -> bool:
        return prompt[: len(self.ids)] == self.ids

    def add(self, prompt: list[int], sampled: list[int], logprobs: list[float]) -> None:
        """Append a request whose prompt begins with this sequence."""
        new = len(prompt) - len(self.ids)
        self.ids = [*prompt, *sampled]
        self._mask += [0] * new + [1] * len(sampled)
        self._logprobs += [0.0] * new + [float(one) for one in logprobs]
        self._has_logprobs = self._has_logprobs and bool(logprobs)

    def closed(self) -> Sequence:
        return Sequence(self.ids, self._mask, self._logprobs if self._has_logprobs else [])
