"""Parameters of ours in every request to a model: temperature, seeds, what makes a server return token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SAMPLE, ROLLOUT_ID = "{sample}", "{rollout_id}"


class MissingLabel(Exception):
    """A placeholder that this Session's metadata does not fill; str: which."""


def fill(params: Mapping[str, Any], *, sample: str | None, rollout_id: str | None) -> dict[str, Any]:
    """`params` with `{sample}` and `{rollout_id}` filled in. A text that is `{sample}` alone becomes the number.

    Raises MissingLabel.
    """
    labels = {SAMPLE: sample, ROLLOUT_ID: rollout_id}

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(member) for name, member in value.items()}
        if isinstance(value, list):
            return [filled(member) for member in value]
        if not isinstance(value, str):
            return value
        for placeholder, label in labels.items():
            if placeholder in value:
                if label is None:
                    raise MissingLabel(f"{placeholder} needs metadata.{placeholder[1:-1]} in the Session's creation")
                value = int(label) if value == SAMPLE and label.isdigit() else value.replace(placeholder, label)
                if isinstance(value, int):
                    return value
        return value

    result = filled(dict(params))
    assert isinstance(result, dict)
    return result


def merge(body: bytes, params: Mapping[str, Any]) -> bytes:
    """A request's JSON body with `params` merged in, by the rules of JSON Merge Patch (RFC 7396): objects are merged,
    null removes a member, all else replaces. Raises ValueError when the body is no JSON object.
    """
    request = json.loads(body)
    if not isinstance(request, dict):
        raise ValueError("the body is no JSON object")
    return json.dumps(_merged(request, params), ensure_ascii=False, separators=(",", ":")).encode()


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result
