"""Sessions and Turns over HTTP: states, Items, Artifacts, retries of a creation, further input, deletion."""

from __future__ import annotations

import base64
import threading
import time
from typing import Any

import httpx

from pytest_core_rollouts.embedded.launch import EmbeddedCore
from tests.support.tables import rows
from tests.support.wire import HOSTED, Wire, oracle

WRITE_ANSWER = "mkdir -p outputs && echo '{\"x\": 1}' >outputs/answer.json"


def test_rollout_from_creation_to_deletion(wire: Wire) -> None:
    data = bytes(range(256))
    environment = {
        **HOSTED,
        "files": [{"type": "inline", "path": "/workspace/in/blob.bin", "data": base64.b64encode(data).decode()}],
        "env": {"GREETING": "hello world"},
    }
    solution = 'mkdir -p outputs/deep && cp in/blob.bin outputs/deep/ && echo "$GREETING" && pwd && echo oops >&2'
    session = wire.create(solution, input="Copy it.", environment=environment, metadata={"rollout_id": "r-1"})
    assert session["status"] == "idle"
    assert session["metadata"] == {"rollout_id": "r-1"}
    assert session["environment"]["files"][0]["size_bytes"] == 256
    turn = wire.wait(session["id"])
    assert (turn["status"], turn["error"], turn["usage"]) == ("completed", None, None)
    assert turn["created_at"] <= turn["started_at"] <= turn["completed_at"]
    user, command, answer = wire.items(session["id"])
    assert user["content"] == [{"type": "input_text", "text": "Copy it."}]
    assert (command["type"], command["exit_code"], command["status"]) == ("command_execution", 0, "completed")
    assert command["output"] == "hello world\n/workspace\noops\n"
    assert (answer["role"], answer["phase"], answer["status"]) == ("assistant", "final_answer", "completed")
    assert {item["turn_id"] for item in (user, command, answer)} == {turn["id"]}
    assert wire.artifacts(session["id"]) == {"/workspace/outputs/deep/blob.bin": data}
    assert wire.ok("GET", f"/sessions/{session['id']}")["status"] == "idle"
    assert wire.ok("GET", f"/sessions/{session['id']}/turns/{turn['id']}") == turn
    for _ in range(2):  # a repeat is fine
        deleted = wire.ok("DELETE", f"/sessions/{session['id']}")
        assert deleted == {"id": session["id"], "object": "agent.session.deleted", "deleted": True}
    wire.refused(404, "GET", f"/sessions/{session['id']}")
    wire.refused(404, "GET", f"/sessions/{session['id']}/items")


def test_files_are_private_and_not_executable(wire: Wire) -> None:
    environment = {**HOSTED, "files": [{"type": "inline", "path": "/workspace/a/run.sh", "data": "eA=="}]}
    session_id, _ = wire.run("stat -c '%a %U' a/run.sh; stat -c %F a", environment=environment)
    output = wire.items(session_id)[1]["output"].split("\n")
    assert output[0].startswith("600 ")
    assert output[1] == "directory"
    wire.end(session_id)


def test_agent_can_only_name_files_on_its_own_disk(core: EmbeddedCore, wire: Wire) -> None:
    """Its disk is below a folder whose name starts with a dot, and is removed with the Session."""
    names = "HEAD conftest.py .envrc --mallory mallory/conftest.py"
    script = f"mkdir -p outputs/mallory; cd outputs; for name in {names}; do echo >./$name; done"
    session_id, turn = wire.run(script, metadata={"rollout_id": "r-1"})
    assert turn["status"] == "completed"
    assert len(wire.artifacts(session_id)) == 5
    found = [path.relative_to(folder) for folder in core._folders for path in folder.rglob("*")]
    ours = [path for path in found if not {"workspace", "home"} & set(path.parts)]
    assert len(ours) < len(found)
    assert not [path for path in ours if {"mallory", *names.split()} & set(path.parts)]
    wire.end(session_id)


def test_failing_solution_fails_the_turn(wire: Wire) -> None:
    session_id, turn = wire.run(f"{WRITE_ANSWER}; echo no such table >&2; exit 3")
    assert turn["status"] == "failed"
    assert turn["error"]["code"] == "internal_error"
    assert "status 3: no such table" in turn["error"]["message"]
    session = wire.ok("GET", f"/sessions/{session_id}")
    assert session["status"] == "failed"
    assert session["error"]
    assert wire.items(session_id)[1]["exit_code"] == 3
    assert wire.artifacts(session_id) == {}  # failed Turns publish nothing
    wire.end(session_id)


def test_nop_harness_replies_and_does_nothing(wire: Wire) -> None:
    session = wire.create(agent={"model": "m/1", "x_agents_core": {"harness": "nop"}})
    assert session["agent"]["model"] == "m/1"
    assert wire.wait(session["id"])["status"] == "completed"
    assert [item["role"] for item in wire.items(session["id"])] == ["user", "assistant"]
    assert wire.artifacts(session["id"]) == {}
    wire.end(session["id"])


def test_solution_has_no_stdin_and_is_not_in_the_workspace(wire: Wire) -> None:
    session_id, turn = wire.run("cat; ls -A /workspace; echo end")
    assert turn["status"] == "completed"
    assert wire.items(session_id)[1]["output"] == "end\n"
    wire.end(session_id)


def test_large_solution_and_large_answer_are_accepted(wire: Wire) -> None:
    solution = f"{WRITE_ANSWER}; head -c 3000000 /dev/zero >outputs/big\n# {'x' * 300_000}\n"
    session_id, turn = wire.run(solution)
    assert turn["status"] == "completed"
    assert wire.artifacts(session_id)["/workspace/outputs/big"] == bytes(3_000_000)
    wire.end(session_id)


@rows(
    ("solution", "why"),
    [
        ("echo x >outputs", "director"),
        ("mkdir outputs && mkfifo outputs/pipe", "pipe"),
    ],
)
def test_rejected_outputs_fail_the_turn(wire: Wire, solution: str, why: str) -> None:
    session_id, turn = wire.run(solution)
    assert (turn["status"], turn["error"]["code"]) == ("failed", "outputs_rejected")
    assert why in turn["error"]["message"]
    assert wire.artifacts(session_id) == {}
    wire.end(session_id)


def test_links_are_not_artifacts(wire: Wire) -> None:
    session_id, turn = wire.run(f"{WRITE_ANSWER}; ln -s /etc/passwd outputs/passwd; ln -s / outputs/root")
    assert turn["status"] == "completed"
    assert wire.artifacts(session_id) == {"/workspace/outputs/answer.json": b'{"x": 1}\n'}
    wire.end(session_id)


def test_setup_commands_run_before_the_turn(wire: Wire) -> None:
    commands = [{"command": "mkdir sub"}, {"command": "echo $WHO >made; exit 0", "cwd": "/workspace/sub"}]
    environment = {**HOSTED, "env": {"WHO": "me"}, "setup_commands": commands}
    session_id, _ = wire.run("cat sub/made", environment=environment)
    assert wire.items(session_id)[1]["output"] == "me\n"
    wire.end(session_id)


def test_failing_setup_command_fails_the_session_without_a_turn(wire: Wire) -> None:
    commands = [{"command": "true"}, {"command": "echo broken >&2; exit 7"}, {"command": "touch never"}]
    session_id = wire.create(environment={**HOSTED, "setup_commands": commands})["id"]
    session = _until(wire, session_id, "failed")
    assert "setup_commands[1]" in session["error"]
    assert "exit status 7" in session["error"]
    assert "broken" in session["error"]
    assert wire.turn(session_id) is None
    error = wire.say(session_id, "more").json()["error"]
    assert (error["type"], error["code"]) == ("conflict_error", "conflict_error")
    assert wire.cancel(session_id).status_code == 202  # nothing to cancel
    wire.end(session_id)


def test_session_is_idle_and_refuses_input_while_it_is_prepared(wire: Wire) -> None:
    slow = {**HOSTED, "setup_commands": [{"command": "sleep 1"}]}
    session_id = wire.create(environment=slow)["id"]
    assert wire.ok("GET", f"/sessions/{session_id}")["status"] == "idle"
    assert wire.turn(session_id) is None
    cancelled = wire.cancel(session_id)
    assert (cancelled.status_code, cancelled.json()["error"]["code"]) == (409, "conflict_error")
    assert wire.refused(409, "DELETE", f"/sessions/{session_id}")["code"] == "conflict_error"
    refused = wire.say(session_id, "more")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict_error")
    assert wire.wait(session_id)["status"] == "completed"
    wire.end(session_id)


def test_later_input_waits_for_the_sandbox(wire: Wire) -> None:
    slow = {**HOSTED, "setup_commands": [{"command": "sleep 0.5"}]}
    session_id = wire.create("echo ran", environment=slow, input=None)["id"]
    assert wire.say(session_id, "now").status_code == 202
    assert wire.turn(session_id) is not None
    assert wire.wait(session_id)["status"] == "completed"
    assert wire.items(session_id)[0]["content"][0]["text"] == "now"
    wire.end(session_id)


def test_session_without_input_can_be_deleted_while_it_is_prepared(wire: Wire) -> None:
    slow = {**HOSTED, "setup_commands": [{"command": "sleep 30"}]}
    session_id = wire.create(environment=slow, input=None)["id"]
    wire.ok("DELETE", f"/sessions/{session_id}")


def test_further_message_starts_a_turn_in_the_same_workspace(wire: Wire) -> None:
    session_id, first = wire.run("echo x >>count; mkdir -p outputs; wc -l <count | tee outputs/answer.json")
    assert wire.say(session_id, "again").status_code == 202
    second = wire.wait(session_id)
    assert second["id"] != first["id"]
    assert [item.get("output") for item in wire.items(session_id)] == [None, "1\n", None, None, "2\n", None]
    listed = wire.ok("GET", f"/sessions/{session_id}/artifacts")["data"]  # newest first
    assert [one["turn_id"] for one in listed] == [second["id"], first["id"]]
    contents = [wire.call("GET", f"/sessions/{session_id}/artifacts/{one['id']}/content").text for one in listed]
    assert contents == ["2\n", "1\n"]
    wire.end(session_id)


def test_session_can_be_used_after_a_failed_turn(wire: Wire) -> None:
    session_id, turn = wire.run("if [ -e tried ]; then echo fine; else touch tried; exit 1; fi")
    assert turn["status"] == "failed"
    assert wire.say(session_id, "again").status_code == 202
    assert wire.wait(session_id, "completed")["error"] is None
    session = wire.ok("GET", f"/sessions/{session_id}")
    assert (session["status"], session["error"]) == ("idle", None)
    wire.end(session_id)


def test_message_to_a_busy_session_is_409(wire: Wire) -> None:
    session_id = wire.create("sleep 30")["id"]
    wire.wait(session_id, "in_progress")
    assert wire.ok("GET", f"/sessions/{session_id}")["status"] == "in_progress"
    assert wire.say(session_id, "hurry").json()["error"]["code"] == "conflict_error"
    assert wire.refused(409, "DELETE", f"/sessions/{session_id}")["type"] == "conflict_error"
    wire.end(session_id)


def test_cancel_kills_the_whole_sandbox(wire: Wire) -> None:
    solution = f"{WRITE_ANSWER}; echo started; (trap '' TERM INT; setsid nohup sleep 300) & trap '' TERM; sleep 300"
    session_id = wire.create(solution)["id"]
    wire.wait(session_id, "in_progress")
    while len(wire.items(session_id)) < 2:  # until the command has started
        time.sleep(0.02)
    assert wire.cancel(session_id).status_code == 202
    turn = wire.wait(session_id)  # long before the 300 s of the solution
    assert turn["status"] == "cancelled"
    assert (turn["error"], turn["usage"]) == (None, None)
    command = wire.items(session_id)[1]
    assert (command["status"], command["exit_code"]) == ("incomplete", None)
    assert wire.artifacts(session_id) == {}
    session = wire.ok("GET", f"/sessions/{session_id}")
    assert (session["status"], session["error"]) == ("idle", None)
    assert wire.cancel(session_id).status_code == 202  # without effect
    assert wire.say(session_id, "again").status_code == 202  # the Session can still be used
    wire.wait(session_id, "in_progress")
    wire.end(session_id)


def test_cancel_during_completion_leaves_one_final_state(wire: Wire) -> None:
    """The Turn has one final state, and Artifacts exist only if it completed."""
    for delay in (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.3):
        session_id = wire.create(f"{WRITE_ANSWER}; sleep 0.05")["id"]
        wire.wait(session_id, "in_progress", "completed")
        time.sleep(delay)
        assert wire.cancel(session_id).status_code == 202
        turn = wire.wait(session_id)
        time.sleep(0.1)
        assert wire.turn(session_id) == turn
        assert bool(wire.artifacts(session_id)) == (turn["status"] == "completed")
        assert turn["status"] in ("completed", "cancelled")
        wire.end(session_id)


def test_queued_turn_is_cancelled_at_once(wire: Wire) -> None:
    """More Turns than run slots: the last ones queue."""
    ids = [wire.create("sleep 30")["id"] for _ in range(40)]
    deadline = time.monotonic() + 30
    while not (queued := [id for id in ids if (wire.turn(id) or {}).get("status") == "queued"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert wire.ok("GET", f"/sessions/{queued[-1]}")["status"] == "in_progress"
    assert wire.cancel(queued[-1]).status_code == 202
    turn = wire.turn(queued[-1])
    assert turn is not None
    assert (turn["status"], turn["started_at"]) == ("cancelled", None)
    for id in ids:
        wire.end(id)


def test_same_key_and_body_create_one_session(wire: Wire) -> None:
    first = wire.create("echo once", key="same-1", metadata={"a": "1", "b": "2"})
    wire.wait(first["id"])
    again = wire.create("echo once", key="same-1", metadata={"b": "2", "a": "1"})
    assert again["id"] == first["id"]
    assert len(wire.ok("GET", f"/sessions/{first['id']}/turns")["data"]) == 1
    other = wire.create("echo once", key="same-2")
    assert other["id"] != first["id"]
    wire.end(other["id"])
    body = {"environment": HOSTED, "agent": oracle("echo other"), "input": "do it"}
    error = wire.refused(409, "POST", "/sessions", json=body, headers={"Idempotency-Key": "same-1"})
    assert (error["type"], error["code"]) == ("conflict_error", "idempotency_conflict")
    wire.end(first["id"])
    body = {"environment": HOSTED, "agent": oracle("echo once"), "input": "do it", "metadata": {"a": "1", "b": "2"}}
    error = wire.refused(409, "POST", "/sessions", json=body, headers={"Idempotency-Key": "same-1"})
    assert error["code"] == "idempotency_conflict"


def test_same_key_at_the_same_time_creates_one_session(wire: Wire) -> None:
    ids: list[str] = []

    def create() -> None:
        with httpx.Client(timeout=30, trust_env=False) as client:
            ids.append(Wire(client, wire.base_url, wire.headers["Authorization"][7:]).create(key="at-once")["id"])

    threads = [threading.Thread(target=create) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 12
    assert len(set(ids)) == 1
    wire.wait(ids[0])
    wire.end(ids[0])


def test_same_key_for_events_admits_one_batch(wire: Wire) -> None:
    session_id, _ = wire.run("true")
    assert wire.say(session_id, "again", key="batch-1").status_code == 202
    wire.wait(session_id)
    assert wire.say(session_id, "again", key="batch-1").status_code == 202
    assert len(wire.ok("GET", f"/sessions/{session_id}/turns")["data"]) == 2
    other = wire.say(session_id, "something else", key="batch-1")
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_conflict")
    wire.end(session_id)


BATCHES: list[tuple[Any, str | None]] = [
    ({}, "events"),
    ({"events": None}, "events"),
    ({"events": {}}, "events"),
    ({"events": ["cancel"]}, "events[0]"),
    ({"events": [{}]}, "events[0].type"),
    ({"events": [{"type": "agent.session.input.surprise"}]}, "events[0].type"),
    ({"events": [{"type": "agent.session.input.cancel", "why": "x"}]}, "events[0].why"),
    ({"events": [{"type": "agent.session.input.cancel"}] * 65}, "events"),
    ({"events": [{"type": "agent.session.input.message", "input": "text"}]}, "events[0].input"),
    ({"events": [{"type": "agent.session.input.message", "input": []}]}, "events[0].input"),
    ({"events": [], "surprise": 1}, "surprise"),
    (
        {"events": [{"type": "agent.session.input.tool_result", "call_id": "c", "turn_id": "t", "success": True}]},
        None,
    ),
    ({"events": [{"type": "agent.session.input.tool_result", "call_id": "c"}]}, "events[0].turn_id"),
]


@rows(("body", "param"), BATCHES)
def test_invalid_batch_is_400(wire: Wire, body: Any, param: str | None) -> None:
    session_id = wire.create(input=None)["id"]
    assert wire.refused(400, "POST", f"/sessions/{session_id}/events", json=body)["param"] == param
    assert wire.call("POST", f"/sessions/{session_id}/events", json={"events": []}).status_code == 202
    assert wire.turn(session_id) is None
    wire.end(session_id)


def test_input_over_512_kib_is_400(wire: Wire) -> None:
    body = {"environment": HOSTED, "agent": oracle("true"), "input": "x" * (512 * 1024 + 1)}
    assert wire.refused(400, "POST", "/sessions", json=body)["param"] == "input"
    wire.end(wire.create(input="x" * (512 * 1024))["id"])


def test_several_messages_keep_their_parts(wire: Wire) -> None:
    def message(*parts: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "input_text", "text": part} for part in parts]}

    session_id, _ = wire.run("true", input=[message("one", "two"), message("  ")])
    texts = [
        [part["text"] for part in item["content"]] for item in wire.items(session_id) if item.get("role") == "user"
    ]
    assert texts == [["one", "two"], ["  "]]
    wire.end(session_id)


def test_update_replaces_metadata(wire: Wire) -> None:
    session_id = wire.create(metadata={"a": "1"}, input=None)["id"]
    path = f"/sessions/{session_id}"
    assert wire.ok("POST", path, json={"metadata": {"b": "2"}})["metadata"] == {"b": "2"}
    assert wire.ok("POST", path, json={"metadata": None})["metadata"] == {}
    wire.refused(400, "POST", path, json={})
    assert wire.refused(400, "POST", path, json={"status": "idle"})["param"] == "status"
    assert wire.refused(400, "POST", path, json={"metadata": {"k": 1}})["param"] == "metadata.k"
    wire.end(session_id)


def test_artifact_can_be_read_and_deleted(wire: Wire) -> None:
    session_id, turn = wire.run(WRITE_ANSWER)
    base = f"/sessions/{session_id}/artifacts"
    (artifact,) = wire.ok("GET", base)["data"]
    assert wire.ok("GET", f"{base}/{artifact['id']}") == artifact
    assert (artifact["turn_id"], artifact["size_bytes"]) == (turn["id"], 9)
    content = wire.call("GET", f"{base}/{artifact['id']}/content")
    assert content.headers["Content-Type"] == "application/octet-stream"
    assert int(content.headers["Content-Length"]) == artifact["size_bytes"] == len(content.content)
    assert wire.ok("DELETE", f"{base}/{artifact['id']}")["object"] == "agent.session.artifact.deleted"
    wire.refused(404, "DELETE", f"{base}/{artifact['id']}")
    wire.refused(404, "GET", f"{base}/{artifact['id']}/content")
    assert wire.ok("GET", base)["data"] == []
    wire.end(session_id)


def test_solution_is_not_in_any_response(wire: Wire) -> None:
    session = wire.create("true # canary-in-the-solution")
    turn = wire.wait(session["id"])
    texts = [
        str(session),
        str(turn),
        str(wire.items(session["id"])),
        wire.call("GET", "/sessions").text,
        wire.call("GET", f"/sessions/{session['id']}").text,
    ]
    assert not any("canary" in text for text in texts)
    wire.end(session["id"])


def _until(wire: Wire, session_id: str, status: str, seconds: float = 20) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while True:
        session: dict[str, Any] = wire.ok("GET", f"/sessions/{session_id}")
        if session["status"] == status:
            return session
        assert time.monotonic() < deadline, session
        time.sleep(0.02)
