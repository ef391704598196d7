"""A training loop that turns, within three minutes on two cores, with no GPU and no key:

    python examples/grpo_bandit.py

Two riddles, each with one right answer out of four: two bandits, each with one arm that pays. The policy is a table of
weights behind an HTTP server; agents ask it, as they would ask a language model. Each step runs a batch of rollouts
with the policy as it is, turns the rewards of each group into advantages, and moves the weights by them.

Where codex is installed, and the embedded Core can run, rollouts are real: codex in a sandbox, asking the policy
through the sandbox's one way out. Elsewhere a toy Core runs a toy agent (`--agent toy`).
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from policy_server import MODEL, Policy, PolicyServer
from toy_core import ToyCore

from pytest_core_rollouts.embedded.launch import EmbeddedCore, EmbeddedCoreError, why_missing
from pytest_core_rollouts.engine import Engine, Group
from pytest_core_rollouts.tasks import Task
from pytest_core_rollouts.tasks.matrix import Agent
from pytest_core_rollouts.training import advantages

ANSWERS = ("amber", "birch", "coral", "dusk")
RIDDLES = {"riddle-north": "coral", "riddle-south": "amber"}
KEY_VARIABLE = "POLICY_API_KEY"


def train(arguments: argparse.Namespace) -> PolicyServer:
    """Every step of the loop; the server as it was in the end."""
    tasks = [_task(riddle) for riddle in RIDDLES]
    policy = Policy(list(RIDDLES), ANSWERS, arguments.seed)
    key = os.environ.setdefault(KEY_VARIABLE, secrets.token_urlsafe(24))
    with (
        PolicyServer(policy, key) as server,
        _core(arguments.agent, arguments.capture) as (harness, base_url, api_key),
        Engine(base_url, api_key, concurrency=arguments.concurrency, out=arguments.out, timeout=120) as engine,
    ):
        agent = Agent(harness, MODEL, protocol="responses", base_url=server.base_url, api_key_env=KEY_VARIABLE)
        for _ in range(arguments.steps):
            run = engine.submit(tasks, agent, samples=arguments.samples, labels={"policy": str(policy.version)})
            groups = list(run.groups())  # all of them, before the policy changes: no rollout spans two versions
            _report(policy.version, groups)
            policy.update(_gradients(groups, arguments.rate))
    return server


def main() -> None:
    arguments = parse_arguments()
    began = time.monotonic()
    server = train(arguments)
    print(f"{len(server.policy.sampled)} rollouts in {time.monotonic() - began:.0f} s: {arguments.out}")


def _gradients(groups: list[Group], rate: float) -> dict[str, float]:
    """Advantage times learning rate for every rollout that says something; the mean over the batch."""
    samples = [
        (record.rollout_id, advantage)
        for group in groups
        for record, advantage in zip(group.records, advantages(group.rewards), strict=True)
        if advantage is not None  # infrastructure spoiled it: it teaches nothing, which is not a reward of 0
    ]
    return {rollout_id: rate * advantage / (len(samples) / len(groups)) for rollout_id, advantage in samples}


def _report(version: int, groups: list[Group]) -> None:
    rewards = [reward for group in groups for reward in group.rewards if reward is not None]
    missing = sum(len(group.rewards) for group in groups) - len(rewards)
    telling = sum(len(set(group.rewards) - {None}) > 1 for group in groups)
    mean = sum(rewards) / len(rewards) if rewards else float("nan")
    line = f"policy {version:2}  mean reward {mean:.3f}  groups with a signal {telling}/{len(groups)}"
    print(line + (f"  errors {missing}" if missing else ""), flush=True)


def _task(riddle: str) -> Task:
    instruction = (
        f"This is {riddle}. Its answer is one of these words: {', '.join(ANSWERS)}. "
        'Write /workspace/outputs/answer.json as {"answer": WORD}.'
    )
    return Task(id=riddle, instruction=instruction, expected={"answer": RIDDLES[riddle]})


Core = tuple[str, str, str]
"""The harness to ask for, a Core's URL and its key."""


def _core(agent: str, capture: Path | None) -> AbstractContextManager[Core]:
    """A Core that runs `agent`: auto, codex or toy."""
    missing = "--capture needs a real agent (--agent codex)" if agent == "toy" else why_missing("codex")
    if missing is not None and (agent == "codex" or capture is not None):
        sys.exit(missing)
    if missing is None:
        print("agent: codex in the embedded Core", flush=True)
        return _embedded_core(capture)
    print("agent: toy" if agent == "toy" else f"agent: toy ({missing})", flush=True)
    return _toy_core()


@contextmanager
def _embedded_core(capture: Path | None) -> Iterator[Core]:
    if capture is not None:
        capture.mkdir(parents=True, exist_ok=True)
    core = EmbeddedCore.reserve()
    try:
        core.start(capture=capture)
    except EmbeddedCoreError as error:
        sys.exit(f"{error}\nOr run it without sandboxes: --agent toy")
    try:
        yield "codex", core.base_url, core.api_key
    finally:
        core.stop()


@contextmanager
def _toy_core() -> Iterator[Core]:
    with ToyCore() as toy:
        yield "default", toy.base_url, toy.api_key


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--samples", type=int, default=6, help="rollouts of each task and step: the size of a group")
    parser.add_argument("--rate", type=float, default=1.0, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agent", choices=("auto", "codex", "toy"), default="auto")
    parser.add_argument("--concurrency", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("runs/grpo_bandit.jsonl"))
    parser.add_argument("--capture", metavar="DIR", type=Path, help="keep the requests to the policy (codex alone)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
