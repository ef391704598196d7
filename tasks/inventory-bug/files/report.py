"""Print the value of the stock: `python3 report.py [--lines]`."""

import sys
from collections import Counter
from pathlib import Path

from inventory.pricing import line_value
from inventory.stock import load_stock


def dollars(cents: int) -> str:
    return f"{cents // 100:,}.{cents % 100:02d}"


def main() -> None:
    lines = load_stock(Path(__file__).with_name("stock.csv"))
    by_category: Counter[str] = Counter()
    for line in lines:
        value = line_value(line)
        by_category[line.category] += value
        if "--lines" in sys.argv[1:]:
            print(f"{line.sku:<12}{dollars(value):>16}")
    for category, value in sorted(by_category.items()):
        print(f"{category:<12}{dollars(value):>16}")
    print(f"{'TOTAL':<12}{dollars(sum(by_category.values())):>16}")


if __name__ == "__main__":
    main()
