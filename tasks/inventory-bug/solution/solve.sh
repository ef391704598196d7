#!/usr/bin/env bash
# Mend inventory/pricing.py where it departs from PRICING.md, run the report before and after, and read its figures.
set -euo pipefail
mkdir -p outputs
export PYTHONDONTWRITEBYTECODE=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

python3 report.py --lines > "$scratch/before"

python3 - <<'PY'
from pathlib import Path

FIXES = {
    # the tiers include their first number
    "        if pieces > pieces_from:\n": "        if pieces >= pieces_from:\n",
    # damaged pieces count for nothing; discounts follow one another; half a cent goes up, in exact whole numbers
    """    percent = quantity_discount(line.quantity)
    if line.clearance:
        percent += CLEARANCE_PERCENT
    return round(line.unit_cents * (100 - percent) / 100)
""": """    price = line.unit_cents * (100 - quantity_discount(line.quantity - line.damaged))  # in 1/100 cent
    price *= 100 - CLEARANCE_PERCENT if line.clearance else 100  # in 1/10000 cent
    return (price + 5000) // 10000
""",
}
module = Path("inventory/pricing.py")
code = module.read_text(encoding="utf-8")
for wrong, right in FIXES.items():
    assert code.count(wrong) == 1, wrong
    code = code.replace(wrong, right)
module.write_text(code, encoding="utf-8")
PY
python3 -m unittest --quiet tests/test_pricing.py

python3 report.py --lines > "$scratch/after"

python3 - "$scratch/before" "$scratch/after" <<'PY'
import json
import sys
from pathlib import Path


def read_report(path: str) -> dict[str, int]:
    """Cents by the name at the start of each line."""
    pairs = (line.split() for line in Path(path).read_text(encoding="utf-8").splitlines())
    return {name: int(dollars.replace(",", "").replace(".", "")) for name, dollars in pairs}


before, after = map(read_report, sys.argv[1:])
answer = {
    "total_cents": after["TOTAL"],
    "category_cents": {name: cents for name, cents in after.items() if name.islower()},
    "wrong_lines": sum(before[name] != cents for name, cents in after.items() if "-" in name),
}
Path("outputs/answer.json").write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
PY
