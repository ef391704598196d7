"""The options that decide a run's verdict, and that end it early: gates, stopping, prices and the limit on the cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

import pytest

from pytest_core_rollouts.engine.replay import Replay
from pytest_core_rollouts.options import values as option_values
from pytest_core_rollouts.options.declared import BY_NAME
from pytest_core_rollouts.options.values import OptionValues
from pytest_core_rollouts.results.early_stop import StopRule
from pytest_core_rollouts.results.gate_forms import parse_gate
from pytest_core_rollouts.results.gate_kinds import Gate
from pytest_core_rollouts.results.prices import Prices, PricesError
from pytest_core_rollouts.tasks.matrix import MODELLESS, Agent


def read_gates(values: OptionValues, config: pytest.Config) -> tuple[Gate, ...]:
    """Return the gates of the run. Raises pytest.UsageError if one lacks what it needs."""
    if values.text("shard") is not None:
        return _gates_of_shard(values, config)
    gates = tuple(values.each("gate", option_values.gate)) or (parse_gate("each"),)
    for gate in gates:
        if gate.needs_baseline and values.path("baseline") is None:
            raise pytest.UsageError(
                f"{values.shown('gate')} {gate.expression}: requires a baseline; add --rollout-baseline PATH"
            )
    return gates


def _gates_of_shard(values: OptionValues, config: pytest.Config) -> tuple[Gate, ...]:
    """A shard only collects: a part of the rollouts decides nothing. Gates of the ini file are for the whole run."""
    if config.getoption(BY_NAME["gate"].dest) is not None:
        for gate in values.each("gate", option_values.gate):
            if gate.expression != "none":
                raise pytest.UsageError(
                    f"{values.shown('gate')} {gate.expression}: a shard judges no gate; remove it, and judge all "
                    f"shards with python -m pytest_core_rollouts report --gate '{gate.expression}' FILES"
                )
    return (parse_gate("none"),)


def read_stop(
    values: OptionValues, config: pytest.Config, gates: Sequence[Gate], replay: Replay | None
) -> StopRule | None:
    """Return when the run stops early. Raises pytest.UsageError where nothing could be decided early."""
    rule = values.one("stop", option_values.stop_rule, None)
    if rule is None:
        return None
    problem = None
    if not values.texts("gate"):
        problem = "requires a gate, which it stops for; add --rollout-gate 'mean>=0.8' or another one"
    elif any(gate.kind == "none" for gate in gates):
        problem = "the gate none needs every rollout; remove it, or remove this option"
    elif config.getoption("dist", "no") != "no" or hasattr(config, "workerinput"):
        problem = "does not work with -n; use --rollout-concurrency N, which keeps N rollouts in flight in one process"
    elif values.switch("allow-missing"):
        problem = "can't be combined with --rollout-allow-missing: a run that stops early misses what it does not need"
    elif replay is not None:
        problem = "a replay runs no agent, so there is nothing to stop; remove it"
    elif values.text("shard") is not None:
        problem = "a shard judges no gate; remove it"
    if problem is not None:
        raise pytest.UsageError(f"{values.shown('stop')}: {problem}")
    return rule


def read_prices(values: OptionValues) -> Prices | None:
    path = values.path("prices")
    try:
        return None if path is None else Prices.load(path)
    except PricesError as error:
        raise pytest.UsageError(f"{values.shown('prices')}: {error}") from None


def read_max_cost(values: OptionValues, prices: Prices | None, agents: Iterable[Agent]) -> Fraction | None:
    """Return the limit. Raises pytest.UsageError if an agent's model has no price, so that nothing can be counted."""
    limit = values.one("max-cost", option_values.dollars, None)
    if limit is None or (values.switch("allow-unknown-cost") and prices is not None):
        return limit
    if prices is None:
        raise pytest.UsageError(f"{values.shown('max-cost')}: requires prices; add --rollout-prices PATH")
    for agent in agents:
        if agent.harness not in MODELLESS and prices.of(agent.model, agent.base_url) is None:
            raise pytest.UsageError(
                f"{values.shown('max-cost')}: {prices.path} has no price of the model {agent.model!r}; add it, or "
                "accept unknown costs with --rollout-allow-unknown-cost"
            )
    return limit
