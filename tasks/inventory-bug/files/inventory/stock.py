"""Stock lines, as they stand in stock.csv."""

import csv
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StockLine:
    sku: str
    category: str
    quantity: int  # pieces on the shelf, damaged ones included
    damaged: int
    unit_cents: int
    clearance: bool


def load_stock(path: Path) -> list[StockLine]:
    with path.open(encoding="utf-8", newline="") as file:
        return [
            StockLine(
                sku=row["sku"],
                category=row["category"],
                quantity=int(row["quantity"]),
                damaged=int(row["damaged"]),
                unit_cents=int(row["unit_cents"]),
                clearance=row["clearance"] == "yes",
            )
            for row in csv.DictReader(file)
        ]
