"""Uses the embedded Core with the official client and checks every response strictly; run by test_openai_sdk.py.

Runs in the client's own environment, with the key on stdin: `python sdk_script.py BASE_URL [MODEL_URL HARNESS...]`.
With a scripted model's URL it also runs real agents.
"""

# mypy: ignore-errors
# (The client is not installed where the project is checked.)

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import openai
from openai import OpenAI
from openai.types.beta.agent_session import AgentSession
from openai.types.beta.agent_session_deleted import AgentSessionDeleted
from openai.types.beta.agent_session_event import AgentSessionEvent
from openai.types.beta.agent_session_item import AgentSessionItem
from openai.types.beta.agents.sessions.session_artifact import SessionArtifact
from openai.types.beta.agents.sessions.session_artifact_deleted import SessionArtifactDeleted
from openai.types.beta.agents.sessions.turn import Turn
from pydantic import BaseModel, TypeAdapter

HOSTED: Any = {
    "type": "openai_hosted",
    "network": {"access": "disabled"},
    "files": [{"type": "inline", "path": "/workspace/in.txt", "data": base64.b64encode(b"seed").decode()}],
}
WRITE = "mkdir -p outputs && cp in.txt outputs/in.txt && echo '{}' >outputs/answer.json && echo out && echo err >&2"
SERVED = "3.13.0"  # later versions know further fields, which are optional
EXTENSIONS = {"x_agents_core"}  # members that the client's models do not have


def check(kind: Any, value: BaseModel) -> None:
    """The client builds models unchecked; check them: strict types and literals, nothing missing, nothing unknown."""
    wire = value.to_dict(mode="json", exclude_unset=True)
    adapter = TypeAdapter(kind)
    model = adapter.validate_json(json.dumps(wire), strict=True)
    complete(model, kind.__name__ if isinstance(kind, type) else str(kind)[:60])


def complete(model: Any, where: str) -> None:
    """Every field the model knows was sent (null where unknown), and no other one."""
    if isinstance(model, BaseModel):
        fields = type(model).model_fields
        unset = set(fields) - model.model_fields_set if openai.__version__ == SERVED else set()
        assert not unset, f"{where}: not sent: {unset}"
        unknown = set(model.model_extra or {}) - EXTENSIONS
        assert not unknown, f"{where}: unknown: {unknown}"
        for name in fields:
            complete(getattr(model, name), f"{where}.{name}")
    elif isinstance(model, list):
        for member in model:
            complete(member, f"{where}[]")


def agent(solution: str) -> Any:
    return {"model": "gpt-x", "x_agents_core": {"harness": "oracle", "harness_config": {"solution": solution}}}


def wait(client: OpenAI, session_id: str, *statuses: str) -> Turn:
    for _ in range(1000):
        for turn in client.beta.agents.sessions.turns.list(session_id, limit=1):
            check(Turn, turn)
            if turn.status in (statuses or ("completed", "failed", "cancelled")):
                return turn
            break
        time.sleep(0.02)
    raise AssertionError("the Turn did not reach the status in time")


def rollout(client: OpenAI) -> str:
    sessions = client.beta.agents.sessions
    key = {"Idempotency-Key": f"sdk-{time.time()}"}
    create: Any = {"environment": HOSTED, "agent": agent(WRITE), "input": "Go.", "metadata": {"a": "b"}}
    session = sessions.create(**create, extra_headers=key)
    check(AgentSession, session)
    assert sessions.create(**create, extra_headers=key).id == session.id
    assert wait(client, session.id).status == "completed"
    check(AgentSession, sessions.retrieve(session.id))
    updated = sessions.update(session.id, metadata={"c": "d"})
    check(AgentSession, updated)
    assert updated.metadata == {"c": "d"}
    items = list(sessions.items.list(session.id, order="asc", limit=1))  # the client follows the pages
    assert [item.type for item in items] == ["message", "command_execution", "message"]
    for item in items:
        check(AgentSessionItem, item)
    artifacts = list(sessions.artifacts.list(session.id, order="asc", limit=1))
    for artifact in artifacts:
        check(SessionArtifact, artifact)
        check(SessionArtifact, sessions.artifacts.retrieve(artifact.id, session_id=session.id))
    contents = {
        artifact.path: sessions.artifacts.content(artifact.id, session_id=session.id).read() for artifact in artifacts
    }
    assert contents == {"/workspace/outputs/answer.json": b"{}\n", "/workspace/outputs/in.txt": b"seed"}
    check(SessionArtifactDeleted, sessions.artifacts.delete(artifacts[0].id, session_id=session.id))
    assert len(list(sessions.artifacts.list(session.id))) == 1
    check(Turn, sessions.turns.retrieve(items[0].turn_id, session_id=session.id))
    return session.id


def streams(client: OpenAI, session_id: str) -> None:
    """The three ways to follow events: of a creation, of a Session, and the client's helper for one Turn."""
    sessions = client.beta.agents.sessions
    seen = []
    for event in sessions.create(environment=HOSTED, agent=agent(WRITE), input="Go.", stream=True):
        check(AgentSessionEvent, event)
        seen.append(event)
    assert seen[0].type == "agent.session.created"
    assert [event.type for event in seen[-2:]] == ["agent.session.turn.completed", "agent.session.idle"]
    with sessions.stream(session_id, input="Again.") as stream:
        types = []
        for event in stream:
            check(AgentSessionEvent, event)
            types.append(event.type)
    assert types[-1] == "agent.session.idle"
    live = sessions.events.stream(session_id)
    say: Any = [{"role": "user", "content": [{"type": "input_text", "text": "Once more."}]}]
    sessions.events.create(session_id, events=[{"type": "agent.session.input.message", "input": say}])
    for event in live:
        check(AgentSessionEvent, event)
        if event.type == "agent.session.idle":
            break
    live.close()
    check(AgentSessionDeleted, sessions.delete(seen[0].session.id))


def cancelling(client: OpenAI) -> None:
    sessions = client.beta.agents.sessions
    session = sessions.create(environment=HOSTED, agent=agent("sleep 60"), input="Go.")
    wait(client, session.id, "in_progress")
    check(AgentSession, sessions.retrieve(session.id))
    for item in sessions.items.list(session.id):
        check(AgentSessionItem, item)
    assert refused(openai.ConflictError, lambda: sessions.delete(session.id)).code == "conflict_error"
    events: list[str] = []
    follower = threading.Thread(target=follow, args=(client, session.id, events))
    follower.start()
    time.sleep(0.5)
    sessions.events.create(session.id, events=[{"type": "agent.session.input.cancel"}])
    assert wait(client, session.id).status == "cancelled"
    follower.join(20)
    assert events == ["agent.session.turn.cancelled", "agent.session.idle"]
    for item in sessions.items.list(session.id):
        check(AgentSessionItem, item)
    check(AgentSessionDeleted, sessions.delete(session.id))


def follow(client: OpenAI, session_id: str, types: list[str]) -> None:
    for event in client.beta.agents.sessions.events.stream(session_id):
        check(AgentSessionEvent, event)
        types.append(event.type)
        if event.type == "agent.session.idle":
            return


def failures(client: OpenAI) -> None:
    sessions = client.beta.agents.sessions
    failed = sessions.create(environment=HOSTED, agent=agent("exit 3"), input="Go.")
    turn = wait(client, failed.id)
    assert turn.error is not None
    assert turn.error.code == "internal_error"
    check(AgentSession, sessions.retrieve(failed.id))
    unprepared = sessions.create(
        environment={**HOSTED, "setup_commands": [{"command": "exit 1"}]}, agent=agent("true"), input="Go."
    )
    while sessions.retrieve(unprepared.id).status != "failed":
        time.sleep(0.02)
    check(AgentSession, sessions.retrieve(unprepared.id))
    refused(openai.BadRequestError, lambda: sessions.create(environment={"type": "none"}, input="x"))
    refused(openai.NotFoundError, lambda: sessions.retrieve("nothing"))
    refused(openai.NotFoundError, lambda: sessions.turns.retrieve("nothing", session_id=failed.id))
    stranger = OpenAI(base_url=client.base_url, api_key="x", max_retries=0)
    refused(openai.AuthenticationError, lambda: stranger.beta.agents.sessions.list())
    for id in (failed.id, unprepared.id):
        check(AgentSessionDeleted, sessions.delete(id))


def real(client: OpenAI, model_url: str, harness: str) -> None:
    """A real agent: all its events and Items; and one that its model's server refuses."""
    sessions = client.beta.agents.sessions
    create: Any = {
        "environment": HOSTED,
        "agent": {"model": "m", "x_agents_core": {"harness": harness}},
        "input": "Go.",
    }
    protocol = {"codex": "responses", "claude_sdk": "anthropic"}[harness]
    for path, status in (("good", "completed"), ("refusing", "failed")):
        provider = {"protocol": protocol, "base_url": f"{model_url}/{path}", "api_key": "secret-key-of-a-model"}
        extra = {"x_agents_core": {"model_provider": provider}}
        seen = []
        for event in sessions.create(**create, stream=True, extra_body=extra, timeout=60):
            check(AgentSessionEvent, event)
            seen.append(event)
        turn = wait(client, seen[0].session.id)
        assert turn.status == status, turn
        items = list(sessions.items.list(turn.session_id, order="asc"))
        for item in items:
            check(AgentSessionItem, item)
        done = [event.item.id for event in seen if event.type == "agent.session.turn.item.done"]
        assert done == [item.id for item in items if item.type != "function_call_output"][1:]
        if status == "completed":
            kinds = ["message", "reasoning", "message", "command_execution"]
            assert [item.type for item in items][:4] == kinds, items
            assert (turn.usage is None) == (harness == "claude_sdk")
        else:
            assert turn.error.code == "authentication_error"
        check(AgentSessionDeleted, sessions.delete(turn.session_id))


def refused(kind: type[openai.APIStatusError], call: Callable[[], Any]) -> openai.APIStatusError:
    try:
        call()
    except kind as error:
        if error.request_id:
            return error
        raise
    raise AssertionError(f"expected {kind.__name__}, but the call succeeded")


def main() -> None:
    client = OpenAI(base_url=sys.argv[1], api_key=sys.stdin.readline().strip(), max_retries=0, timeout=30)
    session_id = rollout(client)
    streams(client, session_id)
    cancelling(client)
    failures(client)
    for harness in sys.argv[3:]:
        real(client, sys.argv[2], harness)
    listed = list(client.beta.agents.sessions.list(limit=1))
    assert [session.id for session in listed] == [session_id]
    for session in listed:
        check(AgentSession, session)
    check(AgentSessionDeleted, client.beta.agents.sessions.delete(session_id))
    print("all responses are valid for", openai.__version__)


if __name__ == "__main__":
    main()
