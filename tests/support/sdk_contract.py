"""Checks what we send to OpenAI's service, and what the fake service answers, by the newest official client.

Runs in the client's own environment: `python sdk_contract.py BASE_URL`, with `{"key": ..., "bodies": [...]}` on stdin.
"""

# mypy: ignore-errors
# (The client is not installed where the project is checked.)

from __future__ import annotations

import collections.abc
import json
import sys
import typing
from typing import Any

import sdk_script
import typing_extensions
from openai import OpenAI
from openai._types import SequenceNotStr
from openai.types.beta.agent_session import AgentSession
from openai.types.beta.agent_session_deleted import AgentSessionDeleted
from openai.types.beta.agent_session_event import AgentSessionEvent
from openai.types.beta.agent_session_item import AgentSessionItem
from openai.types.beta.agents.session_create_params import SessionCreateParamsNonStreaming
from openai.types.beta.agents.sessions.event_create_params import EventCreateParams
from openai.types.beta.agents.sessions.session_artifact import SessionArtifact
from openai.types.beta.agents.sessions.turn import Turn

WRAPPERS = {typing.Annotated, typing_extensions.Required, typing_extensions.NotRequired}
LISTS = {list, collections.abc.Iterable, collections.abc.Sequence, SequenceNotStr}


def faults(value: Any, kind: Any, where: str) -> list[str]:
    """What is wrong with a JSON value where a parameter of this type is expected."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in WRAPPERS:
        return faults(value, arguments[0], where)
    if str(origin) in ("typing.Union", "<class 'types.UnionType'>"):
        all_faults = [faults(value, one, where) for one in arguments]
        return [] if [] in all_faults else min((found for found in all_faults if found), key=len)
    if origin in (typing.Literal, typing_extensions.Literal):
        return [] if value in arguments else [f"{where}: {value!r} is not one of {arguments}"]
    if origin in LISTS:
        if not isinstance(value, list):
            return [f"{where}: expected a list"]
        return [fault for n, one in enumerate(value) for fault in faults(one, arguments[0], f"{where}[{n}]")]
    if origin is dict or kind is dict:
        if not isinstance(value, dict):
            return [f"{where}: expected an object"]
        return [
            fault
            for key, one in value.items()
            for fault in faults(one, (arguments or (0, object))[1], f"{where}.{key}")
        ]
    if typing_extensions.is_typeddict(kind):
        return faults_of_object(value, kind, where)
    if kind is object:
        return []
    return [] if type(value) is kind else [f"{where}: expected {kind}, got {value!r}"]


def faults_of_object(value: Any, kind: Any, where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where}: expected an object"]
    members = typing_extensions.get_type_hints(kind, include_extras=True)
    found = [f"{where}.{key}: unknown member" for key in value.keys() - members.keys()]
    found += [f"{where}.{key}: missing" for key in kind.__required_keys__ - value.keys()]
    for key in value.keys() & members.keys():
        found += faults(value[key], members[key], f"{where}.{key}")
    return found


def require(value: Any, kind: Any, where: str) -> None:
    found = faults(value, kind, where)
    assert not found, found


def run(client: OpenAI, body: Any) -> None:
    """Run one Session; every answer that a rollout reads is checked."""
    sessions = client.beta.agents.sessions
    session = sessions.create(**body)
    sdk_script.check(AgentSession, session)
    types = []
    stream = sessions.events.stream(session.id)
    for event in stream:
        sdk_script.check(AgentSessionEvent, event)
        types.append(event.type)
        if event.type == "agent.session.idle":
            break
    assert types[-2:] == ["agent.session.turn.completed", "agent.session.idle"], types
    sdk_script.check(AgentSession, sessions.retrieve(session.id))
    turns = list(sessions.turns.list(session.id))
    assert [turn.subagent_id is None for turn in turns] == [False, True]
    for turn in turns:
        sdk_script.check(Turn, turn)
    for item in sessions.items.list(session.id):
        sdk_script.check(AgentSessionItem, item)
    artifacts = list(sessions.artifacts.list(session.id))
    assert artifacts
    for artifact in artifacts:
        sdk_script.check(SessionArtifact, artifact)
    for listed in sessions.list():
        sdk_script.check(AgentSession, listed)
    sdk_script.check(AgentSessionDeleted, sessions.delete(session.id))


def main() -> None:
    given = json.load(sys.stdin)
    client = OpenAI(base_url=sys.argv[1], api_key=given["key"], max_retries=0, timeout=30)
    for number, body in enumerate(given["bodies"]):
        require(body, SessionCreateParamsNonStreaming, f"body {number}")
        run(client, body)
    require({"events": [{"type": "agent.session.input.cancel"}]}, EventCreateParams, "cancel")
    bad = {**given["bodies"][0], "x_agents_core": {}}
    assert faults(bad, SessionCreateParamsNonStreaming, "bad") == ["bad.x_agents_core: unknown member"]
    print("all that is sent and answered is valid")


main()
