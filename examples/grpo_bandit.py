"""A complete training loop, which runs within three minutes on two cores and needs no GPU and no API key.

    python examples/grpo_bandit.py

Two riddles, each with one right answer out of four: two bandits, each with one arm that pays. The policy is a table of
weights behind an HTTP server, and agents query it as they would query a language model. Each step runs a batch of
rollouts with the current policy, converts the rewards of each group to advantages, and updates the weights.

If codex is installed and the embedded Core can run, the agent is codex in a sandbox that can reach nothing but the
policy. Otherwise a toy Core runs a toy agent (`--agent toy`).
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from policy_server import MODEL, Policy, PolicyServer
from toy_core import ToyCore

from pytest_core_rollouts import Agent, CoreError, Engine, Group, Task, advantages

ANSWERS = ("amber", "birch", "coral", "dusk")
RIDDLES = {"riddle-north": "coral", "riddle-south": "amber"}


def train(arguments: argparse.Namespace) -> PolicyServer:
    """Run every step of the loop. Returns the policy's server as it was at the end."""
    tasks = [_task(riddle) for riddle in RIDDLES]
    policy = Policy(list(RIDDLES), ANSWERS, arguments.seed)
    with (
        PolicyServer(policy, secrets.token_urlsafe(24)) as server,
        _engine(arguments, server) as (engine, agent),
    ):
        for _ in range(arguments.steps):
            run = engine.submit(tasks, agent, samples=arguments.samples, labels={"policy": str(policy.version)})
            groups = list(run.groups())  # wait for all of them, so that no rollout spans two versions of the policy
            _report(policy.version, groups)
            policy.update(_gradients(groups, arguments.rate))
    return server


def main() -> None:
    arguments = parse_arguments()
    began = time.monotonic()
    server = train(arguments)
    print(f"{len(server.policy.sampled)} rollouts in {time.monotonic() - began:.0f} s: {arguments.out}")


def _gradients(groups: list[Group], rate: float) -> dict[str, float]:
    """Return advantage times learning rate by rollout id, divided by the mean number of usable samples per group."""
    samples = [
        (record.rollout_id, advantage)
        for group in groups
        for record, advantage in zip(group.records, advantages(group.rewards), strict=True)
        if advantage is not None  # the infrastructure failed, so the reward is missing, which is not 0
    ]
    return {rollout_id: rate * advantage / (len(samples) / len(groups)) for rollout_id, advantage in samples}


def _report(version: int, groups: list[Group]) -> None:
    rewards = [reward for group in groups for reward in group.rewards if reward is not None]
    missing = sum(len(group.rewards) for group in groups) - len(rewards)
    with_signal = sum(len(set(group.rewards) - {None}) > 1 for group in groups)
    mean = sum(rewards) / len(rewards) if rewards else float("nan")
    line = f"policy {version:2}  mean reward {mean:.3f}  groups with a signal {with_signal}/{len(groups)}"
    print(line + (f"  errors {missing}" if missing else ""), flush=True)


def _task(riddle: str) -> Task:
    instruction = (
        f"This is {riddle}. Its answer is one of these words: {', '.join(ANSWERS)}. "
        'Write /workspace/outputs/answer.json as {"answer": WORD}.'
    )
    return Task(id=riddle, instruction=instruction, expected={"answer": RIDDLES[riddle]})


@contextmanager
def _engine(arguments: argparse.Namespace, server: PolicyServer) -> Iterator[tuple[Engine, Agent]]:
    """Yield an engine and the agent to run on it: codex on the embedded Core if possible, else the toy agent."""
    concurrency, out = arguments.concurrency, arguments.out
    codex, toy = (
        Agent(harness, MODEL, protocol="responses", base_url=server.base_url, api_key=server.api_key)
        for harness in ("codex", "default")
    )
    if arguments.agent == "toy" and arguments.capture is not None:
        sys.exit("--capture: requires a real agent (--agent codex)")
    if arguments.agent != "toy":
        engine = Engine.embedded(capture=arguments.capture, concurrency=concurrency, out=out, timeout=120)
        try:
            engine.prepare([(None, codex)])  # starts the Core; raises CoreError if sandboxes or codex are missing
        except CoreError as error:
            engine.close()
            if arguments.agent == "codex" or arguments.capture is not None:
                sys.exit(f"{error}\nTo run without sandboxes, use --agent toy")
            print(f"agent: toy ({error})", flush=True)
        else:
            print("agent: codex in the embedded Core", flush=True)
            with engine:
                yield engine, codex
            return
    with (
        ToyCore() as core,
        Engine(core.base_url, core.api_key, concurrency=concurrency, out=out, timeout=120) as engine,
    ):
        yield engine, toy


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--samples", type=int, default=6, help="rollouts per task and step: the size of a group")
    parser.add_argument("--rate", type=float, default=1.0, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agent", choices=("auto", "codex", "toy"), default="auto")
    parser.add_argument("--concurrency", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("runs/grpo_bandit.jsonl"))
    parser.add_argument("--capture", metavar="DIR", type=Path, help="keep the requests to the policy; requires codex")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
