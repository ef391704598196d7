"""Prices from a file, and what rows cost."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.cli import main
from pytest_core_rollouts.records.rows import append
from pytest_core_rollouts.report.markdown import markdown
from pytest_core_rollouts.results.prices import Prices, PricesError, dollars
from pytest_core_rollouts.results.summary import summarize
from tests.support.rows import run

YAML = """\
openai/gpt-5: {input: 1.25, output: 10, input_cache_read: 0.125}
claude: {input: 3, output: 15, input_cache_write: 3.75, input_cache_read: 0.30}
"""


def usage(sent: int, sampled: int, **details: int) -> dict[str, Any]:
    return {
        "input_tokens": sent,
        "input_tokens_details": details,
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": sampled // 2},
        "total_tokens": sent + sampled,
    }


@pytest.fixture
def prices(tmp_path: Path) -> Prices:
    (tmp_path / "prices.yaml").write_text(YAML)
    return Prices.load(tmp_path / "prices.yaml")


@pytest.mark.parametrize(
    ("model", "fields", "cost"),
    [
        ("openai/gpt-5", {"usage": usage(100_000, 5_000, cached_tokens=80_000)}, "0.085"),  # .025 + .01 + .05
        ("openai/gpt-5", {"usage": usage(100_000, 5_000, cache_write_tokens=10_000)}, "0.175"),  # at the input's price
        ("claude", {"usage": usage(1_000_000, 0, cached_tokens=200_000, cache_write_tokens=100_000)}, "2.535"),
        ("openai/gpt-5", {"usage": None}, None),
        ("openai/gpt-5", {"usage": {"total_tokens": 7}}, None),
        ("openai/gpt-5", {"usage": usage(100, 0, cached_tokens=101)}, None),  # not counted as part of the input
        ("gpt-5x", {"usage": usage(100, 1)}, None),  # the model's name, exactly
        ("default", {"usage": usage(100, 1)}, None),
        ("default", {"usage": None, "spent": 0}, "0"),  # no Turn
        # the failed attempts count, too; without their usage the cost is unknown
        ("claude", {"usage": usage(1_000_000, 0), "earlier_usage": [usage(1_000_000, 0)], "spent": 2_000_000}, "6"),
        ("claude", {"usage": None, "earlier_usage": [usage(1_000_000, 0)], "spent": 1_000_000}, "3"),
        ("claude", {"usage": usage(1_000_000, 0), "earlier_usage": [None], "spent": None}, None),
        ("claude", {"usage": usage(1_000_000, 0), "spent": 2_000_000}, None),
    ],
)
def test_the_cost_of_a_row_is_that_of_all_its_attempts(
    prices: Prices, model: str, fields: dict[str, Any], cost: str | None
) -> None:
    [row] = run({"a": (1.0,)}, model=model, **fields)
    assert prices.cost(row) == (None if cost is None else Fraction(cost))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ": has no prices; write MODEL: {input: 1.25, output: 10}"),
        ("m: 3", ":1: m: expected prices, got 3; write {input: 1.25, output: 10}"),
        ("m: {input: 1}", ":1: m: the price output is missing; add it, in dollars per million tokens"),
        ("a: {input: 1, output: 1}\nm: {input: -1, output: 1}", ":2: m.input: expected dollars per million tokens,"),
        ("m: {input: '1', output: 1}", ":1: m.input: expected dollars per million tokens, such as 1.25, got '1'"),
        ("m: {input: true, output: 1}", ":1: m.input: expected dollars per million tokens, such as 1.25, got true"),
        ("m: {input: 1, output: 1, cached: 1}", ":1: m.cached: unknown price; use input, output, input_cache_write"),
        ("m: {input: 1, output: 1}\nm: {input: 1, output: 1}", ":2: m: "),
        ("container: {small: -1}", ":1: container.small: expected dollars per 20 minutes, such as 1.25, got -1"),
        ("container: {tiny: 1}", ":1: container.tiny: unknown size; use small, medium, large"),
        (
            "container: 1",
            ":1: container: expected prices by size, got 1; write {small: 0.03, medium: 0.12, large: 0.48}",
        ),
        ("m: [", ":"),
    ],
)
def test_an_invalid_file_is_refused_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(PricesError) as caught:
        Prices.load(path)
    assert str(caught.value).startswith(f"{path}{problem}")
    assert "\n" not in str(caught.value)


def test_a_json_file_has_the_same_format(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"openai/gpt-5": {"input": 1.25, "output": 10}}))
    assert Prices.load(path).models["openai/gpt-5"].input_cache_read == Fraction("1.25")
    with pytest.raises(PricesError, match="cannot read the prices: No such file"):
        Prices.load(tmp_path / "none.yaml")


def test_amounts_are_never_rounded_to_nothing() -> None:
    amounts = ["0", "0.00001", "0.0001", "0.123456", "0.99996", "12.396", "1234.5"]
    assert [dollars(Fraction(amount)) for amount in amounts] == [
        *("$0.00", "<$0.0001", "$0.0001", "$0.1235", "$1.00", "$12.40", "$1,234.50"),
    ]


def test_reports_show_costs_and_what_is_unknown(
    prices: Prices, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        *run({"a": (1.0, 1.0), "b": (0.0,)}, model="claude", agents=2, usage=usage(1_000_000, 0), tags=["t"]),
        *run({"a": (1.0, 1.0), "b": (0.0,)}, model="default", agents=2, usage=usage(1_000_000, 0)),
    ]
    rows[2] = dataclasses.replace(rows[2], usage=None)
    text = markdown(summarize(rows, prices=prices))
    assert "- cost of codex/claude: $6.00+ (1 of 3 rollouts unknown), $6.00+ per solved task\n" in text
    assert "- cost of codex: unknown; no price of default\n" in text
    assert "- cost in all: $6.00+ (4 of 6 rollouts unknown; no price of default)\n" in text
    assert "cost" not in markdown(summarize(rows))
    for row in rows:
        append(tmp_path / "x.jsonl", row, sync=False)
    assert main(["report", str(tmp_path / "x.jsonl"), "--prices", str(prices.path), "--by", "tag"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(text)
    [of_tag] = [line for line in out.splitlines() if line.startswith("| t ") and "claude" in line]
    assert of_tag.endswith("| 2000000+ | $6.00+ |")
    (tmp_path / "bad.yaml").write_text("m: {input: -1, output: 1}")
    assert main(["report", str(tmp_path / "x.jsonl"), "--prices", str(tmp_path / "bad.yaml")]) == 4
    assert capsys.readouterr().err.startswith(f"ERROR: --prices: {tmp_path}/bad.yaml:1: m.input: expected dollars")


@pytest.mark.parametrize(
    ("fields", "cost"),
    [
        ({}, "0"),  # not on OpenAI's service
        ({"settings": {"container_size": "small"}}, "0.0075"),  # five minutes at least
        ({"settings": {"container_size": "small"}, "timings": {"turn": 250.0, "fetch": 51.0}}, "0.009"),  # six begun
        ({"settings": {"container_size": "medium"}, "duration_s": 1200.0}, "0.12"),
        ({"settings": {"container_size": "medium"}, "session_id": None}, "0"),
        ({"settings": {"container_size": "large"}}, None),  # the file has no price for it
        ({"settings": {"container_size": "small"}, "attempt": 2}, None),
        ({"settings": {"container_size": 5}}, None),
    ],
)
def test_the_time_of_containers_counts(tmp_path: Path, fields: dict[str, Any], cost: str | None) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("m: {input: 0, output: 0}\ncontainer: {small: 0.03, medium: 0.12}")
    [row] = run({"a": (1.0,)}, model="m", **{"usage": usage(1, 1), "session_id": "s", **fields})
    assert Prices.load(path).cost(row) == (None if cost is None else Fraction(cost))


def test_public_prices_hold_where_the_file_names_no_price(tmp_path: Path) -> None:
    pytest.importorskip("genai_prices", reason="requires pip install 'pytest-core-rollouts[prices]' (Python 3.11)")
    path = tmp_path / "prices.yaml"
    path.write_text("mine: {input: 1, output: 2}\ndefault: {input: 1, output: 1}\n")
    prices = Prices.load(path)
    tokens = {"input_tokens": 100_000, "output_tokens": 100_000}

    def cost(model: str, base_url: str | None = None) -> Fraction | None:
        found = prices.of(model, base_url)
        return None if found is None else found.cost(tokens)

    assert cost("mine") == cost("mine", "https://infer.example/v1") == Fraction("0.3")
    assert cost("claude-sonnet-4-5") == Fraction("1.8")  # its list price since it exists: 3 and 15 dollars a million
    assert cost("claude-sonnet-4-5", "https://infer.example/v1") is None
    assert cost("no-such-model") is None
    path.write_text("mine: {input: 1, output: 2}\n")
    assert Prices.load(path).of("default", None) is None
    public = prices.of("claude-sonnet-4-5", None)
    assert public is not None
    assert public.cost({"input_tokens": 5, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 9}}) is None
    assert public.cost(None) is None
