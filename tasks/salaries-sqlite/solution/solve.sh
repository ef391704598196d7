#!/usr/bin/env bash
# Average yearly salaries per department on 30 June of three years, by the rules of README.md.
set -euo pipefail
mkdir -p outputs
python3 - <<'PY'
import json
import sqlite3
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from pathlib import Path

YEARS = ("2022", "2023", "2024")
SNAPSHOT = """
SELECT d.name, s.amount_cents * CASE s.period WHEN 'month' THEN 12 ELSE 1 END
FROM employees e
JOIN assignments a ON a.employee_id = e.id AND a.role = 'main'
     AND a.valid_from <= :day AND (a.valid_to IS NULL OR a.valid_to > :day)
JOIN departments d ON d.id = a.department_id
JOIN salaries s ON s.employee_id = e.id
     AND s.effective_from = (SELECT max(effective_from) FROM salaries WHERE employee_id = e.id AND effective_from <= :day)
WHERE e.kind = 'staff' AND s.amount_cents IS NOT NULL
"""


def two_decimals(value: Fraction | None) -> float | None:
    if value is None:
        return None
    return float((Decimal(value.numerator) / value.denominator).quantize(Decimal("0.01"), ROUND_HALF_UP))


db = sqlite3.connect("file:company.db?mode=ro", uri=True)
departments = [name for (name,) in db.execute("SELECT name FROM departments ORDER BY id")]
averages: dict[str, dict[str, Fraction | None]] = {}
headcount: dict[str, dict[str, int]] = {}
for year in YEARS:
    salaries: dict[str, list[int]] = {name: [] for name in departments}
    for name, cents in db.execute(SNAPSHOT, {"day": f"{year}-06-30"}):
        salaries[name].append(cents)
    averages[year] = {name: Fraction(sum(paid), 100 * len(paid)) if paid else None for name, paid in salaries.items()}
    headcount[year] = {name: len(paid) for name, paid in salaries.items()}

change: dict[str, Fraction | None] = {}
for name in departments:
    first, last = averages["2022"][name], averages["2024"][name]
    change[name] = 100 * (last - first) / first if first and last else None

answer = {
    "averages": {year: {name: two_decimals(value) for name, value in row.items()} for year, row in averages.items()},
    "headcount": headcount,
    "change_percent": {name: two_decimals(value) for name, value in change.items()},
    "largest_rise": max((name for name in departments if change[name] is not None), key=lambda name: change[name]),
}
Path("outputs/answer.json").write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
PY
