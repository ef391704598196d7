#!/usr/bin/env bash
# Who buys KB-204: units kept, spend per currency and buyers, by the rules of README.md.
set -euo pipefail
mkdir -p outputs
python3 - <<'PY'
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

SKU = "KB-204"
SMALLEST_UNITS = {"EUR": 100, "JPY": 1, "KWD": 1000}

merged_into = {c["id"]: c["merged_into"] for c in json.loads(Path("customers.json").read_text(encoding="utf-8"))["customers"]}


def final(customer: str) -> str:
    while merged_into[customer]:
        customer = merged_into[customer]
    return customer


def kept(order: dict) -> Iterator[tuple[int, int]]:
    """Units of SKU kept, and the price of one, for every line or component of the order."""
    for shipment in order["shipments"]:
        for line in shipment["lines"]:
            count = line.get("quantity", 1) - line.get("returned", 0)
            if "components" in line:
                products = [(part, count * part.get("quantity", 1)) for part in line["components"]]
            else:
                products = [(line, count)]
            for product, units in products:
                if product["sku"] == SKU:
                    yield units, product["unit_price"]


units: Counter[str] = Counter()
spend = dict.fromkeys(SMALLEST_UNITS, 0)
orders: dict[str, set[str]] = defaultdict(set)
for order in json.loads(Path("orders.json").read_text(encoding="utf-8"))["orders"]:
    if order["status"] not in ("paid", "shipped", "delivered"):
        continue
    buyer = final(order["customer"]["id"])
    for count, price in kept(order):
        if count:
            units[buyer] += count
            spend[order["currency"]] += count * price
            orders[buyer].add(order["id"])

answer = {
    "buyers": len(units),
    "units": sum(units.values()),
    "spend": {currency: amount / SMALLEST_UNITS[currency] for currency, amount in spend.items()},
    "top_buyer": max(units, key=lambda buyer: units[buyer]),
    "repeat_buyers": sorted(buyer for buyer in orders if len(orders[buyer]) >= 3),
}
Path("outputs/answer.json").write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
PY
