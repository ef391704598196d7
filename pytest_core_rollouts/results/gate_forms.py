"""Gates as text: `mean>=0.8`, `pass^4[task:login]>=1`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from pytest_core_rollouts.results.gate_kinds import AtLeast, Collect, Each, Gate, Lost, NoDrop
from pytest_core_rollouts.results.passing import pass_at_k, pass_hat_k
from pytest_core_rollouts.results.scope import Scope, ScopeError
from pytest_core_rollouts.text import listed


class GateError(ValueError):
    """An unknown gate. `str()` is one line that names the known ones."""


_SHARE = r"(?P<share>0|1|0?\.\d{1,100}|1\.0{1,100})"
_FORMS: Mapping[str, Callable[[re.Match[str]], Gate]] = {
    r"each": lambda _: Each(),
    r"none": lambda _: Collect(),
    r"baseline": lambda _: NoDrop(),
    r"mean\s*>=\s*" + _SHARE: lambda m: AtLeast("mean", lambda agent: agent.mean_reward, m["share"], is_mean=True),
    r"pass@(?P<k>[1-9]\d{0,5})\s*>=\s*" + _SHARE: lambda m: _pass("@", int(m["k"]), m["share"]),
    r"pass\^(?P<k>[1-9]\d{0,5})\s*>=\s*" + _SHARE: lambda m: _pass("^", int(m["k"]), m["share"]),
    r"lost\s*<=\s*(?P<most>\d{1,6})": lambda m: Lost(int(m["most"])),
}
KNOWN = (
    "each, none, mean>=X, pass@K>=X, pass^K>=X, lost<=N or baseline (X from 0 to 1, such as 0.8); "
    "for some tasks only: mean[tag:NAME]>=X, mean[task:ID]>=X"
)
_SCOPED = re.compile(r"(?P<kind>[^\[\]<>=]*)\[(?P<scope>[^\[\]]*)\](?P<rest>[^\[\]]*)")


def _pass(sign: str, k: int, share: str) -> Gate:
    figure = (lambda agent: agent.pass_at(k)) if sign == "@" else (lambda agent: agent.pass_hat(k))
    rate = pass_at_k if sign == "@" else pass_hat_k
    return AtLeast(f"pass{sign}{k}", figure, share, samples=k, is_mean=k == 1, rate=rate)


def parse_gate(text: str) -> Gate:
    """Return the gate that `text` names, with its scope. Raises GateError if it is unknown."""
    plain, scope = text.strip(), None
    if (scoped := _SCOPED.fullmatch(plain)) is not None:
        plain = f"{scoped['kind'].rstrip()}{scoped['rest'].lstrip()}"
        try:
            scope = Scope.parse(scoped["scope"])
        except ScopeError as error:
            raise GateError(f"gate {text!r}: {error}") from None
    for form, make in _FORMS.items():
        if (match := re.fullmatch(form, plain, re.ASCII)) is not None:
            gate = make(match)
            if scope is not None and isinstance(gate, Collect):
                raise GateError(f"gate {text!r}: none judges no reward, so it has no scope; remove {scope}")
            gate.scope = scope
            return gate
    raise GateError(f"unknown gate {text!r}; use {KNOWN}")


def scope_problem(gate: Gate, tags: Mapping[str, Collection[str]]) -> str | None:
    """Return why no task is in the gate's scope, given the tags of each task, and what to do; None if one is."""
    if gate.scope is None or gate.scope.ids(tags):
        return None
    known = sorted(tags) if gate.scope.kind == "task" else sorted({tag for of in tags.values() for tag in of})
    what = "id" if gate.scope.kind == "task" else "tag"
    choices = f"choose from {listed(known, 10)}" if known else f"the tasks have no {what}s"
    return f"no selected task has such {'an id' if what == 'id' else 'a tag'}; {choices}"
