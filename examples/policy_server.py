"""A policy small enough to read: a softmax over a few answers per riddle, served as a model on loopback.

It serves as much of the Responses protocol as agent programs need. If the agent has a shell (codex), the policy calls
it to write the answer; otherwise it replies with the answer. As an inference server does in training, it stores what it
sampled for every rollout, by the rollout id in the path: `/rollouts/{rollout_id}/v1/responses`. Its replies have token
ids and log probabilities. A token is a whole answer here.
"""

from __future__ import annotations

import json
import math
import random
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "table-policy"

_PATH = re.compile(r"/rollouts/([A-Za-z0-9._-]+)/v1/responses")
_RIDDLE = re.compile(r"riddle-\w+")


@dataclass(frozen=True)
class Sampled:
    """One action of the policy, with the probabilities of all actions at that version."""

    version: int
    riddle: str
    action: str
    probabilities: Mapping[str, float]


class Policy:
    """The weights. `act` may be called from many threads; `update` only between two batches of rollouts."""

    def __init__(self, riddles: Sequence[str], actions: Sequence[str], seed: int = 0) -> None:
        self.version = 0
        self.riddles, self.actions = tuple(riddles), tuple(actions)
        self.sampled: dict[str, Sampled] = {}
        self._weights = {riddle: dict.fromkeys(actions, 0.0) for riddle in riddles}
        self._seed = seed

    def probabilities(self, riddle: str) -> dict[str, float]:
        exponentials = {action: math.exp(weight) for action, weight in self._weights[riddle].items()}
        total = sum(exponentials.values())
        return {action: value / total for action, value in exponentials.items()}

    def act(self, rollout_id: str, riddle: str) -> Sampled:
        """Sample an answer. The seed depends on the sample number, so the order of requests changes nothing."""
        probabilities = self.probabilities(riddle)
        sample = rollout_id.rpartition(".")[2]
        chance = random.Random(f"{self._seed} {self.version} {riddle} {sample}")
        [action] = chance.choices(list(probabilities), list(probabilities.values()))
        self.sampled[rollout_id] = Sampled(self.version, riddle, action, probabilities)
        return self.sampled[rollout_id]

    def update(self, gradients: Mapping[str, float]) -> None:
        """Make one step of policy gradient, given advantage times learning rate by rollout id. Increases the version.

        The derivative of log softmax by a weight is (1 if chosen, else 0) - probability.
        """
        for rollout_id, step in gradients.items():
            sampled = self.sampled.get(rollout_id)
            if sampled is None:  # its agent sent no request, so the policy sampled nothing for it
                continue
            weights = self._weights[sampled.riddle]
            for action, probability in sampled.probabilities.items():
                weights[action] += step * ((action == sampled.action) - probability)
        self.version += 1


class PolicyServer:
    """Serves a policy inside a `with` block. `requests` has the rollout id of each request, in order."""

    def __init__(self, policy: Policy, api_key: str) -> None:
        self.policy, self.api_key = policy, api_key
        self.requests: list[str] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/rollouts/{{rollout_id}}/v1"

    def __enter__(self) -> PolicyServer:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def reply(self, rollout_id: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `output` of a response, one Item, with its tokens. Raises ValueError if no riddle is named."""
        asked = json.dumps(request["input"])
        riddle = _RIDDLE.search(asked)
        if riddle is None:
            raise ValueError("the request names no riddle")
        prompt = self.policy.riddles.index(riddle[0])
        if "function_call_output" in asked:  # the shell has written the answer: nothing to sample
            return {"output": [_message("Done.")], **_tokens(prompt, len(self.policy.actions), 1.0)}
        sampled = self.policy.act(rollout_id, riddle[0])
        answer = json.dumps({"answer": sampled.action})
        if any(tool.get("name") == "exec_command" for tool in request.get("tools") or ()):
            item = _shell(f"mkdir -p outputs && echo '{answer}' > outputs/answer.json")
        else:
            item = _message(answer)
        token = self.policy.actions.index(sampled.action)
        return {"output": [item], **_tokens(prompt, token, sampled.probabilities[sampled.action])}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512
    owner: PolicyServer


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = _PATH.fullmatch(self.path.partition("?")[0])
        if path is None:
            self._send(404, _error(f"nothing is served at {self.path}"))
        elif self.headers.get("Authorization") != f"Bearer {self.server.owner.api_key}":
            self._send(401, _error("wrong key"))
        else:
            self._reply(path[1], body)

    def _reply(self, rollout_id: str, body: bytes) -> None:
        self.server.owner.requests.append(rollout_id)
        try:
            request = json.loads(body)
            reply = self.server.owner.reply(rollout_id, request)
        except (ValueError, KeyError) as error:
            self._send(400, _error(str(error)))
            return
        response = {"id": f"resp_{len(self.server.owner.requests)}", "model": MODEL, "status": "completed"}
        usage = {"input_tokens": len(body) // 4, "output_tokens": 1, "total_tokens": len(body) // 4 + 1}
        completed = {**response, **reply, "usage": usage}
        if request.get("stream"):
            self._send(200, b"".join(_events(response, completed)), "text/event-stream")
        else:
            self._send(200, json.dumps(completed).encode())

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing, because the training loop prints its progress."""


def _events(response: Any, completed: Any) -> Iterator[bytes]:
    for event in (
        {"type": "response.created", "response": response},
        {"type": "response.output_item.done", "output_index": 0, "item": completed["output"][0]},
        {"type": "response.completed", "response": completed},
    ):
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def _shell(command: str) -> dict[str, Any]:
    arguments = json.dumps({"cmd": command})
    return {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "exec_command", "arguments": arguments}


def _tokens(prompt: int, token: int, probability: float) -> dict[str, Any]:
    logprobs = [{"token_id": token, "logprob": math.log(probability)}]
    return {"prompt_token_ids": [prompt], "token_ids": [token], "logprobs": logprobs}


def _error(message: str) -> bytes:
    return json.dumps({"error": {"type": "invalid_request_error", "message": message}}).encode()
