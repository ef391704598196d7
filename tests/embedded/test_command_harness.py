"""Any program as a harness, on scripted models of all three protocols: Items and usage come from its model traffic."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import KEY
from tests.support.scripted_models import CHAT_USAGE, Calls, Fail, Hang, Reply, Say, ScriptedModel, Shell, Tool
from tests.support.wire import HOSTED, Wire

AGENT = str(Path(__file__).parents[1] / "support" / "any_agent.py")
PROTOCOLS = ("chat_completions", "responses", "anthropic")
LOOK = "python3 -c \"import os; print(sorted(name for name in os.environ if 'BASE_URL' in name or 'API_KEY' in name))\""


def creation(url: str, protocol: str, *command: str, **members: Any) -> dict[str, Any]:
    config = {"name": "own", "protocol": protocol, "command": list(command), "mounts": [AGENT]}
    provider = {"protocol": protocol, "base_url": url, "api_key": KEY}
    return {
        "environment": HOSTED,
        "agent": {
            "model": "m",
            "x_agents_core": {"harness": "command", "harness_config": config | members.pop("config", {})},
            **members.pop("agent", {}),
        },
        "input": "Do as the script says.",
        "x_agents_core": {"model_provider": provider},
        **members,
    }


def finish(wire: Wire, body: dict[str, Any], seconds: float = 60) -> tuple[str, dict[str, Any]]:
    session_id = wire.ok("POST", "/sessions", 201, json=body)["id"]
    return session_id, wire.wait(session_id, seconds=seconds)


def steps(*replies: Reply) -> Any:
    """A script: one reply after the other, by the number of results that the agent has sent."""
    after: dict[int, Reply] = {}
    results = 0
    for reply in replies:
        after[results] = reply
        results += len(reply.tools) if isinstance(reply, Calls) else 1
    return lambda ask: after[ask.step]


def contents(items: list[dict[str, Any]]) -> list[Any]:
    """Items in short: who said what, which tool was called with what, and what it returned."""
    short: list[Any] = []
    for item in items:
        if item["type"] == "message":
            short.append((item["role"], item["content"][0]["text"]))
        elif item["type"] == "reasoning":
            short.append(("thought", item["summary"][0]["text"]))
        elif item["type"] == "function_call":
            short.append((item["name"], item["arguments"]))
        else:
            short.append(item["output"])
    return short


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("form", ["whole", "streamed"])
def test_items_and_usage_are_read_from_the_traffic(agents_wire: Wire, protocol: str, form: str) -> None:
    both = Calls([Tool("bash", {"command": "echo one"}), Tool("bash", {"command": LOOK})])
    shell = Shell("mkdir outputs && echo 1 >outputs/x && echo two", thought="Hm.", remark="I write.")
    with ScriptedModel(steps(both, shell, Say("Done."))) as model:
        url = model.url if protocol == "anthropic" else f"{model.url}/v1"
        body = creation(url, protocol, "python3", AGENT, protocol, form, "{instruction}")
        session_id, turn = finish(agents_wire, body)
    assert turn["status"] == "completed", turn
    names = ["ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"] if protocol == "anthropic" else []
    assert contents(agents_wire.items(session_id)) == [
        ("user", "Do as the script says."),
        ("bash", {"command": "echo one"}),
        ("bash", {"command": LOOK}),
        "one",
        str(names or ["OPENAI_API_KEY", "OPENAI_BASE_URL"]),
        ("thought", "Hm."),
        ("assistant", "I write."),
        ("bash", {"command": "mkdir outputs && echo 1 >outputs/x && echo two"}),
        "two",
        ("assistant", "Done."),
    ], "the agent prints other things"
    assert agents_wire.artifacts(session_id) == {"/workspace/outputs/x": b"1\n"}
    details = (0, 0) if protocol == "anthropic" else (120, 15)
    assert turn["usage"] == {
        "input_tokens": 300,
        "input_tokens_details": {"cached_tokens": details[0]},
        "output_tokens": 60,
        "output_tokens_details": {"reasoning_tokens": details[1]},
        "total_tokens": 360,
    }
    paths = {"chat_completions": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
    assert {ask.path for ask in model.requests} == {paths[protocol]}
    assert all(KEY in str(ask.headers) for ask in model.requests), "the proxy adds the key"


SAY = "import os, sys; print(' | '.join([*sys.argv[1:], sys.stdin.read(), os.environ['X'], open(sys.argv[2]).read()]))"


def test_placeholders_are_filled_once_and_later_turns_have_their_own_command(agents_wire: Wire) -> None:
    """What the program got is in the message of its failure, because it fails on purpose."""
    command = ["python3", "-c", f"{SAY}; sys.exit(7)", "{instruction}", "{instruction_file}", "{model}-{model}"]
    config: dict[str, Any] = {
        "stdin": "<{instruction}>",
        "env": {"X": "{base_url} {api_key}"},
        "resume": ["python3", "-c", "1"],
    }
    body = creation("http://127.0.0.1:9/v1", "responses", *command, config=config, input="Use {model}.")
    body["agent"]["instructions"] = "Be brief."
    session_id, turn = finish(agents_wire, body)
    text = "Be brief.\n\nUse {model}."
    printed = f"{text} | /home/agent/.rollout/instruction-1.md | m-m | <{text}> | "
    printed += f"http://127.0.0.1:48080/v1 key-held-by-the-proxy | {text}"
    assert turn["error"]["code"] == "internal_error"
    assert turn["error"]["message"].endswith(f"ended with status 7 before the model's first reply: {printed}")

    config |= {"exit_codes": [7]}
    body = creation("http://127.0.0.1:9/v1", "responses", *command, config=config)
    session_id, turn = finish(agents_wire, body)
    assert turn["status"] == "completed", "7 is a good status now"
    agents_wire.say(session_id, "Go on.")
    assert "ended with status 0" in agents_wire.wait(session_id)["error"]["message"], "and 0 is not an error"
    del config["resume"]
    session_id, _ = finish(agents_wire, creation("http://127.0.0.1:9/v1", "responses", *command, config=config))
    agents_wire.say(session_id, "Go on.")
    assert "takes one Turn only: it has no `resume` command" in agents_wire.wait(session_id)["error"]["message"]


ASK = """
import json, os, sys, time, urllib.error, urllib.request

def request(body, path="/chat/completions"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, data, {"Content-Type": "application/json"})

def ask(body, path="/chat/completions"):
    try:
        return urllib.request.urlopen(request(body, path)).read()
    except urllib.error.HTTPError as error:
        return error.code

GO = {"model": "m", "messages": [{"role": "user", "content": "go"}], "tools": []}
"""


def run_script(wire: Wire, url: str, script: str, **members: Any) -> tuple[str, dict[str, Any]]:
    return finish(wire, creation(f"{url}/v1", "chat_completions", "python3", "-c", ASK + script, **members))


def test_failure_shows_the_end_of_both_outputs(agents_wire: Wire) -> None:
    script = "ask(GO); print('x' * 100_000 + 'the end of stdout'); sys.exit('the end of stderr')"
    with ScriptedModel(steps(Say("Done."))) as model:
        _, turn = run_script(agents_wire, model.url, script)
    assert turn["error"]["code"] == "agent_exited"
    assert turn["error"]["message"].endswith("the end of stdout\nthe end of stderr")
    assert "ended with status 1" in turn["error"]["message"]


@pytest.mark.parametrize("ends", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["ends", "goes on"])
def test_program_that_tries_for_ever_is_stopped_as_an_error_of_the_server(agents_wire: Wire, ends: bool) -> None:
    script = f"while (code := ask(GO)) != 424 or not {ends}: time.sleep(0.05)\nsys.exit(1)"
    with ScriptedModel(steps(Fail(500))) as model:
        _, turn = run_script(agents_wire, model.url, script)
    assert turn["error"]["code"] == "server_error", turn
    assert ("did not end after that" in turn["error"]["message"]) is not ends
    assert len(model.requests) == 1, "this Core's agents may repeat no request"


def test_failure_of_the_server_that_passes_does_not_stop_the_program(agents_wire: Wire) -> None:
    script = "for path in ('/other', '/chat/completions', '/models'):\n    ask(GO, path)\nask({'n': 1} | GO)"
    with ScriptedModel(lambda ask: Fail(400) if ask.path.endswith("other") else Say("Done.")) as model:
        session_id, turn = run_script(agents_wire, model.url, script)
    assert turn["status"] == "completed", turn
    assert turn["usage"]["total_tokens"] == 240
    assert contents(agents_wire.items(session_id)) == [
        ("user", "Do as the script says."),
        ("assistant", "Done."),
        ("assistant", "Done."),
    ]


HIDES = {
    "hangs up": "reply = urllib.request.urlopen(request({'stream': True} | GO)); reply.read(40); reply.close()",
    "ends first": (
        "import threading\nthreading.Thread(target=ask, args=({'hang': 1} | GO,), daemon=True).start()\ntime.sleep(1)"
    ),
    "does not ask for it": "ask({'stream': True} | GO)",
    "uses an old protocol": "ask({'prompt': 'x'} | GO, '/completions')",
}


@pytest.mark.parametrize("how", HIDES)
def test_agent_cannot_hide_tokens(agents_wire: Wire, how: str) -> None:
    """The sum is unknown, not too small, if a server did not report the tokens of each reply."""
    script = f"ask(GO)\n{HIDES[how]}"
    with ScriptedModel(lambda ask: Hang() if "hang" in ask.body else Say("Done. " * 50_000)) as model:
        _, turn = run_script(agents_wire, model.url, script)
    assert turn["status"] == "completed", turn
    assert turn["usage"] is None


ODD = [
    "ask({'messages': 5} | GO)",
    "ask(dict(GO, messages=[5, None, {'role': {}, 'content': {'a': 1}}, {'role': 'tool', 'tool_call_id': [1]}]))",
    "ask(dict(GO, messages=[{'role': 'user', 'content': [{'text': 5}, 'x', {'text': '\\udc00'}]}]))",
    "ask(json.dumps(GO)[:-1].encode() + b', \"deep\": ' + b'[' * 40_000 + b']' * 40_000 + b'}')",
    "ask(dict(GO, messages=[{'role': 'user', 'content': str(n)} for n in range(30_000)]))",
    "ask(dict(GO, messages=[{'role': 'user', 'content': [0] * 100_000}]))",
    "ask(dict(GO, messages=[{'role': 'user', 'content': '[,\"\\\\' * 100_000}]))",
    "ask(dict(GO, messages=[{'role': 'user', 'content': 'x' * 20_000_000}]))",
]


@contextmanager
def _lenient_model() -> Iterator[str]:
    """A server that gives any request the same reply."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            choice = {"index": 0, "message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}
            data = json.dumps({"choices": [choice], "usage": CHAT_USAGE}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Not needed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_odd_requests_end_no_turn_and_change_no_other(agents_wire: Wire) -> None:
    script = "\n".join([*ODD, "ask(GO)"])
    with _lenient_model() as url:
        session_id, turn = run_script(agents_wire, url, script)
    assert turn["status"] == "completed", turn
    assert contents(agents_wire.items(session_id))[-1] == ("assistant", "Done.")
    assert turn["usage"]["total_tokens"] == 120 * (len(ODD) + 1), "tokens are counted all the same"
    warnings = "\n".join(turn["warnings"])
    assert "Items are missing: 2 x a request with too many values" in warnings
    assert "Items are missing: 1 x a request that is not JSON" in warnings
    assert "Items are missing: 1 x a request that is too long" in warnings


def test_flood_of_output_ends_only_its_own_turn(agents_wire: Wire) -> None:
    _, turn = run_script(agents_wire, "http://127.0.0.1:9", "os.execvp('yes', ['yes', 'no'])")
    assert turn["error"]["code"] == "sandbox_limit_exceeded"
    assert "printed more than" in turn["error"]["message"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node: apt-get install nodejs")
def test_program_may_reserve_the_address_space_of_webassembly(agents_wire: Wire) -> None:
    script = "for (let i = 0; i < 4; i++) new WebAssembly.Memory({initial: 1})"
    _, turn = finish(agents_wire, creation("http://127.0.0.1:9/v1", "responses", "node", "-e", script))
    assert turn["status"] == "completed", turn


def test_mount_that_is_gone_or_must_stay_hidden_is_an_error_of_the_machine(agents_wire: Wire) -> None:
    """The client refuses them before it starts the Core; something may have changed since."""
    for mount, words in (
        ("/etc/shadow", "/etc/shadow: a sandbox can't show it, because it lies in /etc/shadow, among tasks"),
        ("/", "/: a sandbox can't show it, because it holds "),
        ("/usr/nowhere", "The sandbox failed: [Errno 2] No such file or directory: '/usr/nowhere'"),
    ):
        body = creation("http://127.0.0.1:9/v1", "responses", "true", config={"mounts": [mount]})
        _, turn = finish(agents_wire, body)
        assert turn["error"]["code"] == "sandbox_error"
        assert turn["error"]["message"].startswith(words)


def test_bad_description_is_refused(agents_wire: Wire) -> None:
    for config, words in (({"commands": []}, "no parameter 'commands'"), ({"command": None}, "")):
        body = creation("http://127.0.0.1:9/v1", "responses", "true", config=config)
        if config == {"command": None}:
            del body["agent"]["x_agents_core"]["harness_config"]["command"]
            words = "needs other parameters"
        assert words in agents_wire.refused(400, "POST", "/sessions", json=body)["message"]
