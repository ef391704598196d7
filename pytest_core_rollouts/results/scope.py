"""The scope of a gate: the tasks that it judges, by tag or by id."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_core_rollouts.results.summary import Summary

_FORM = re.compile(r"(?P<kind>tag|task):(?P<names>.*)", re.DOTALL)


class ScopeError(ValueError):
    """An invalid scope. `str()` says what is wrong and what to do."""


@dataclass(frozen=True)
class Scope:
    """Tasks with one of these tags, or with one of these ids. In a name, `*` stands for any characters, also `/`."""

    kind: Literal["tag", "task"]
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"[{self.kind}:{','.join(self.names)}]"

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Parse `tag:a,b` or `task:x,sql/*`, the text between the brackets. Raises ScopeError."""
        if (match := _FORM.fullmatch(text.strip())) is None:
            raise ScopeError(f"unknown scope [{text}]; use [tag:NAME,...] or [task:ID,...]; a * matches anything")
        names = tuple(name.strip() for name in match["names"].split(","))
        if not all(names):
            raise ScopeError(f"the scope [{text}] has an empty name; remove the extra comma or add the name")
        return cls("tag" if match["kind"] == "tag" else "task", tuple(dict.fromkeys(names)))

    def ids(self, tags: Mapping[str, Collection[str]]) -> frozenset[str]:
        """Return the tasks of the scope, given the tags of each task."""
        return frozenset(task for task, of_task in tags.items() if self._contains(task, of_task))

    def _contains(self, task: str, tags: Collection[str]) -> bool:
        found = tags if self.kind == "tag" else (task,)
        return any(fnmatch.fnmatchcase(one, pattern) for one in found for pattern in map(_only_stars, self.names))


def on_tasks(summary: Summary, ids: Collection[str]) -> Summary:
    """Return the summary of some tasks. Tasks without a row could be any, so they stay planned."""
    agents = tuple(agent.on_tasks(ids) for agent in summary.agents)
    others = summary.planned - sum(agent.planned for agent in summary.agents)
    return Summary(agents, others + sum(agent.planned for agent in agents), summary.runs)


def _only_stars(name: str) -> str:
    """Return the pattern of fnmatch in which only `*` is special."""
    return re.sub(r"[\[?]", r"[\g<0>]", name)


def tags_of(*summaries: Summary) -> dict[str, frozenset[str]]:
    """Return the tags of each task; if several summaries have a task, the first one counts."""
    tags: dict[str, frozenset[str]] = {}
    for summary in summaries:
        own: dict[str, frozenset[str]] = {}
        for agent in summary.agents:
            for score in (*agent.tasks, *agent.xfails):
                own[score.task] = own.get(score.task, frozenset()) | score.tags
        tags = own | tags
    return tags
