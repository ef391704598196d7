"""What rollouts cost: prices from a file, and dollars from the tokens of rows.

Prices change, so no row has a cost: it is computed whenever a report is made. What is unknown is never taken for 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from pytest_core_rollouts.records.record import RolloutRecord, tokens_of
from pytest_core_rollouts.tasks.matrix import CONTAINER_SIZES, DEFAULT
from pytest_core_rollouts.tasks.strict_yaml import Invalid, YamlError, describe, load_yaml

REQUIRED: Final = ("input", "output")
OPTIONAL: Final = ("input_cache_write", "input_cache_read")
CONTAINER: Final = "container"
"""The key of a file of prices that has the price of sandboxes on OpenAI's service, by size."""
PRICED_MINUTES: Final = 20
LEAST_MINUTES: Final = 5
_MILLION = 1_000_000


class PricesError(ValueError):
    """A file of prices that can't be used. `str()` is one line: where, what is wrong, what to do."""


def token_counts(usage: Mapping[str, Any] | None) -> tuple[int, int, int, int] | None:
    """Return input tokens, output tokens, and input tokens read from and written to a cache; None if unknown.

    Cached tokens are part of the input tokens, and reasoning tokens of the output tokens.
    """
    details = (usage or {}).get("input_tokens_details") or {}
    if usage is None or not isinstance(details, Mapping):
        return None
    counts = [usage.get("input_tokens"), usage.get("output_tokens")]
    counts += [details.get(name) or 0 for name in ("cached_tokens", "cache_write_tokens")]
    known = [count for count in counts if type(count) is int and count >= 0]
    if len(known) < len(counts):
        return None
    sent, sampled, read, written = known
    return None if read + written > sent else (sent, sampled, read, written)  # else counted in another way


@dataclass(frozen=True)
class ModelPrices:
    """Dollars per million tokens of one model."""

    input: Fraction
    output: Fraction
    input_cache_write: Fraction
    input_cache_read: Fraction

    def cost(self, usage: Mapping[str, Any] | None) -> Fraction | None:
        """Return what a usage costs, in dollars; None if it doesn't say enough."""
        if (counts := token_counts(usage)) is None:
            return None
        sent, sampled, read, written = counts
        dollars = (
            (sent - read - written) * self.input
            + read * self.input_cache_read
            + written * self.input_cache_write
            + sampled * self.output
        )
        return Fraction(dollars) / _MILLION


@dataclass(frozen=True)
class PublicPrices:
    """Prices of a model that genai-prices knows, as of the day of a rollout."""

    model: str
    at: datetime | None = None

    def cost(self, usage: Mapping[str, Any] | None) -> Fraction | None:
        """Return what a usage costs, in dollars; None if it doesn't say enough."""
        from genai_prices import Usage, calc_price

        if (counts := token_counts(usage)) is None:
            return None
        sent, sampled, read, written = counts
        tokens = Usage(input_tokens=sent, output_tokens=sampled, cache_read_tokens=read, cache_write_tokens=written)
        try:
            return Fraction(calc_price(tokens, model_ref=self.model, genai_request_timestamp=self.at).total_price)
        except (LookupError, ValueError):  # it does not know the model, or not such a usage
            return None

    @property
    def known(self) -> bool:
        try:
            return self.cost({"input_tokens": 1, "output_tokens": 1}) is not None
        except ImportError:
            return False


@functools.cache
def _is_public(model: str) -> bool:
    """Whether the extra `prices` is installed and has the model."""
    return PublicPrices(model).known


@dataclass(frozen=True)
class Prices:
    """The prices of a file: of tokens by the model that rows name, and of PRICED_MINUTES of a container by its size."""

    path: Path
    models: Mapping[str, ModelPrices]
    containers: Mapping[str, Fraction] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Prices:
        """Read a YAML or JSON file: `model: {input, output, input_cache_write, input_cache_read}`.

        The key `container` has the prices of containers instead: `container: {small, medium, large}`.

        Raises PricesError.
        """
        try:
            file = load_yaml(path, path.read_bytes())
        except OSError as error:
            raise PricesError(f"{path}: cannot read the prices: {error.strerror or error}") from None
        except YamlError as error:
            raise PricesError(str(error)) from None
        if not file.values:
            raise PricesError(f"{path}: has no prices; write MODEL: {{input: 1.25, output: 10}}")
        models: dict[str, ModelPrices] = {}
        containers: dict[str, Fraction] = {}
        for name, value in file.values.items():
            try:
                if name == CONTAINER:
                    containers = _container_prices(value)
                else:
                    models[name] = _model_prices(value)
            except Invalid as invalid:
                raise PricesError(str(file.error(invalid.problem, (name, *invalid.key)))) from None
        return cls(path, models, containers)

    def of(self, model: str, base_url: str | None, at: datetime | None = None) -> ModelPrices | PublicPrices | None:
        """Return the prices of a model; None: unknown.

        What the file does not name has public prices, with the extra `prices`, but not at a base URL of the user's own.
        """
        if model in self.models:
            return self.models[model]
        return PublicPrices(model, at) if base_url is None and model != DEFAULT and _is_public(model) else None

    def of_row(self, row: RolloutRecord) -> ModelPrices | PublicPrices | None:
        """Return the prices of a row's model on its day; None: unknown."""
        at = None if row.started_at is None else datetime.fromisoformat(row.started_at.replace("Z", "+00:00"))
        return self.of(row.model, row.settings.get("base_url"), at)

    def cost(self, row: RolloutRecord) -> Fraction | None:
        """Return what all attempts of a row's rollout cost, in dollars; None: unknown."""
        return sum_known([self._token_cost(row), self._container_cost(row)])

    def _container_cost(self, row: RolloutRecord) -> Fraction | None:
        """Return what the containers of a row's rollout cost: by the minute, with at least LEAST_MINUTES."""
        size = row.settings.get("container_size")
        if not self.containers or size is None or (row.session_id is None and row.attempt <= 1):
            return Fraction(0)
        price = self.containers.get(size) if isinstance(size, str) else None
        if price is None or row.attempt > 1:  # how long the containers of earlier attempts lived is not in the row
            return None
        seconds = max(row.duration_s or 0.0, sum(row.timings.values()))
        return max(LEAST_MINUTES, math.ceil(seconds / 60)) * price / PRICED_MINUTES

    def _token_cost(self, row: RolloutRecord) -> Fraction | None:
        if row.spent == 0:
            return Fraction(0)
        prices = self.of_row(row)
        if prices is None:
            return None
        # With a known sum and no usage, the last attempt had no Turn.
        usages = [*row.earlier_usage, *([row.usage] if row.usage is not None or row.spent is None else [])]
        known = [tokens_of(usage) for usage in usages]
        if row.spent is not None and (None in known or sum(count or 0 for count in known) != row.spent):
            return None  # a row of an earlier version lacks the usage of attempts that failed
        return sum_known([prices.cost(usage) for usage in usages])


def sum_known(costs: Sequence[Fraction | None]) -> Fraction | None:
    """Return the sum; None if one of them is unknown."""
    known = [cost for cost in costs if cost is not None]
    return sum(known, Fraction(0)) if len(known) == len(costs) else None


def _model_prices(value: Any) -> ModelPrices:
    if not isinstance(value, Mapping):
        raise Invalid(f"expected prices, got {describe(value)}; write {{input: 1.25, output: 10}}")
    for name in value:
        if name not in (*REQUIRED, *OPTIONAL):
            raise Invalid(f"unknown price; use {', '.join((*REQUIRED, *OPTIONAL))}", (name,))
    for name in REQUIRED:
        if name not in value:
            raise Invalid(f"the price {name} is missing; add it, in dollars per million tokens")
    given = {name: _price(name, price) for name, price in value.items()}
    of_input = given["input"]
    return ModelPrices(
        of_input,
        given["output"],
        given.get("input_cache_write", of_input),
        given.get("input_cache_read", of_input),
    )


def _container_prices(value: Any) -> dict[str, Fraction]:
    if not isinstance(value, Mapping) or not value:
        raise Invalid(
            f"expected prices by size, got {describe(value)}; write {{small: 0.03, medium: 0.12, large: 0.48}}"
        )
    for size in value:
        if size not in CONTAINER_SIZES:
            raise Invalid(f"unknown size; use {', '.join(CONTAINER_SIZES)}", (size,))
    return {size: _price(size, price, f"{PRICED_MINUTES} minutes") for size, price in value.items()}


def _price(name: str, value: Any, of: str = "million tokens") -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise Invalid(f"expected dollars per {of}, such as 1.25, got {describe(value)}", (name,))
    return Fraction(repr(value))


# Costs of several rows


@dataclass(frozen=True)
class Cost:
    """What rollouts cost together, and how many of them are unknown."""

    known: Fraction = Fraction(0)
    rollouts: int = 0
    unknown: int = 0
    models: frozenset[str] = field(default_factory=frozenset)
    """Models without a price."""

    @classmethod
    def of(cls, rows: Iterable[RolloutRecord], prices: Prices) -> Cost:
        rows = list(rows)
        costs = [prices.cost(row) for row in rows]
        known = [cost for cost in costs if cost is not None]
        models = frozenset(row.model for row in rows if prices.of_row(row) is None)
        return cls(sum(known, Fraction(0)), len(rows), len(rows) - len(known), models)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.known + other.known,
            self.rollouts + other.rollouts,
            self.unknown + other.unknown,
            self.models | other.models,
        )

    def __str__(self) -> str:
        """`$12.40`, `$12.40+` if some are unknown, `-` if all are."""
        if self.unknown == self.rollouts:
            return "-"
        return f"{dollars(self.known)}{'+' if self.unknown else ''}"


def dollars(value: Fraction) -> str:
    """Return an amount: in cents, or with four decimals if it is below a dollar. Only 0 gives $0.00."""
    if value >= Fraction("0.99995"):
        return f"${round(value * 100) / 100:,.2f}"
    if not value:
        return "$0.00"
    return "<$0.0001" if value < Fraction("0.0001") else f"${float(value):.4f}"
