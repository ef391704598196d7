"""The bundled tasks: their own solutions earn 1.0, careless readings of them earn 0.0.

Each task is solved here a second time, in another way than its `solution/solve.sh`. These solvers take the name of a
trap and then read the task as carelessly as the name says, so that a test shows that the trap changes the answer.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.grading.answers import Answer, grade_answer, read_answer
from pytest_core_rollouts.tasks.loading import load_task
from pytest_core_rollouts.tasks.task import Task
from tests.support.tables import rows

TASKS = Path(__file__).parents[2] / "tasks"
ENVIRONMENT = {
    "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    "LC_ALL": "C",  # a sandbox may know no locale
    "PYTHONDONTWRITEBYTECODE": "1",
}


def sales_by_region(files: Path, trap: str = "") -> dict[str, Any]:
    months = [f"{2025 + (month > 12)}-{(month - 1) % 12 + 1:02}" for month in range(2, 14)]
    text = (files / "sales.csv").read_text(encoding="utf-8")
    if trap == "a line is a row":
        rows = [line.split(",") for line in text.splitlines() if line.count(",") == 7]
    elif trap == "a line is a row, quotes understood":
        rows = [row for line in text.splitlines() if len(row := next(csv.reader([line]), [])) == 8]
    else:
        rows = list(csv.reader(text.splitlines(keepends=True)))
    net = {region: [0] * 4 for region in ("north", "south", "east", "west", "central")}
    seen: set[str] = set()
    for number, day, region, kind, _, quantity, price, _ in rows:
        if number in seen and trap != "rows sent twice":
            continue
        seen.add(number)
        if trap != "region as typed":
            region = region.strip().capitalize()
        if trap != "Midlands forgotten":
            region = re.sub("(?i)midlands", "Central", region)
        if region not in ("North", "South", "East", "West", "Central"):
            continue
        month = int(day[5:7])
        if trap == "calendar quarters":
            quarter = (month - 1) // 3
        elif trap == "years mixed":
            quarter = (month - 2) % 12 // 3
        elif day[:7] in months:
            quarter = months.index(day[:7]) // 3
        else:
            continue
        if trap == "thousands dropped":
            price = price.split(",")[-1]
        cents = int(quantity) * int(re.sub("[,.]", "", price))
        if kind == "sale" or (kind == "void" and trap == "voids counted"):
            net[region.lower()][quarter] += cents
        elif kind == "refund" and trap != "refunds ignored":
            net[region.lower()][quarter] += cents if trap == "refunds added" else -cents
    best = max((value, region, i) for region, values in net.items() for i, value in enumerate(values))
    return {
        "net_cents": {region: {f"Q{i}": value for i, value in enumerate(values, 1)} for region, values in net.items()},
        "total_cents": sum(map(sum, net.values())),
        "best": {"region": best[1], "quarter": f"Q{best[2] + 1}"},
    }


def failed_logins(files: Path, trap: str = "") -> dict[str, Any]:
    attempts: Counter[str] = Counter()
    for line in (files / "auth.log").read_text(encoding="utf-8").splitlines():
        program, message = line[22:].split(": ", 1)
        last = "May 18 00:00:00" if trap == "last day left out" else "May 18 23:59:59"
        if not "May 12 00:00:00" <= line[:15] <= last and trap != "whole log":
            continue
        programs = {"sshd"} if trap == "only sshd" else {"sshd", "sshd-session"}
        if program.split("[")[0] not in programs and trap != "any program":
            continue
        times = 1
        if message.startswith("message repeated "):
            times, message = int(message.split(" ")[2]), message.split("[ ", 1)[1].removesuffix("]")
            times = {"repeats left out": 0, "a repeat is one": 1, "repeats include the first": times - 1}.get(
                trap, times
            )
        if trap == "words anywhere in the message":
            found = "Failed password for" in message
        elif trap == "any method":
            found = message.startswith("Failed ")
        else:
            found = message.startswith("Failed password for ")
        if not found or (trap == "invalid users left out" and "invalid user" in message):
            continue
        words = message.partition(" from ")[2] if trap == "first address" else message.rpartition(" from ")[2]
        if "." in words.split(" ")[0] or trap != "only IPv4":
            attempts[_client(words.split(" ")[0], trap)] += times
    attempts = +attempts
    return {
        "attempts": dict(attempts),
        "addresses": len(attempts),
        "total": sum(attempts.values()),
        "top_address": max(attempts, key=lambda address: attempts[address]),
    }


def _client(address: str, trap: str) -> str:
    if ":" not in address or trap == "addresses as written":
        return address
    short = socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, address))
    return short if trap == "mapped addresses apart" else short.removeprefix("::ffff:")


def inventory_bug(files: Path, trap: str = "") -> dict[str, Any]:
    with (files / "stock.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    values = {line["sku"]: _stock_value(line, trap) for line in lines}
    if trap == "code left as it is":
        values = _reported(files)
    by_category: Counter[str] = Counter()
    for line in lines:
        by_category[line["category"]] += values[line["sku"]]
    return {
        "total_cents": sum(values.values()),
        "category_cents": dict(by_category),
        "wrong_lines": sum(values[sku] != before for sku, before in _reported(files).items()),
    }


def _stock_value(line: dict[str, str], trap: str) -> int:
    careless = trap == "only the failing test"
    pieces, cents, clearance = int(line["quantity"]), int(line["unit_cents"]), line["clearance"] == "yes"
    sound = pieces - int(line["damaged"])
    count = pieces if careless or trap == "damaged pieces in the tier" else sound
    count -= trap == "tiers begin one later"
    off = Fraction(20 if count >= 200 else 12 if count >= 50 else 5 if count >= 10 else 0, 100)
    further = Fraction(15, 100) if clearance else Fraction(0)
    price = cents * (1 - off) * (1 - further)
    if careless or trap == "discounts added up":
        price = cents * (1 - off - further)
    if trap == "rounded in between":
        price = _half_up(cents * (1 - off)) * (1 - further)
    if trap == "line rounded, not the piece":
        return _half_up(price * sound)
    rounded = round(price) if careless or trap == "half to even" else _half_up(price)
    return rounded * (pieces if trap == "damaged pieces valued" else sound)


def _half_up(value: Fraction) -> int:
    return int(value + Fraction(1, 2))


def _reported(files: Path) -> dict[str, int]:
    """Cents by SKU, as the report in `files` prints them."""
    command = [sys.executable, str(files / "report.py"), "--lines"]
    report = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    return {sku: int(re.sub("[,.]", "", dollars)) for sku, dollars in re.findall(r"^(\S+-\S+) +(\S+)$", report, re.M)}


def orders_json(files: Path, trap: str = "") -> dict[str, Any]:
    orders = json.loads((files / "orders.json").read_bytes())["orders"]
    customers = json.loads((files / "customers.json").read_bytes())["customers"]
    current = {customer["id"]: customer["id"] for customer in customers}
    rounds = {"customers not merged": 0, "merged one step": 1}.get(trap, len(customers))
    targets = {customer["id"]: customer["merged_into"] or customer["id"] for customer in customers}
    for _ in range(rounds):
        current = {old: targets[new] for old, new in current.items()}
    refused = {"cancelled counted": {"draft"}, "drafts counted": {"cancelled"}}.get(trap, {"cancelled", "draft"})
    units: Counter[str] = Counter()
    spend: Counter[str] = Counter()
    bought_in: defaultdict[str, list[str]] = defaultdict(list)
    for order in orders:
        if order["status"] in refused:
            continue
        buyer = current[order["customer"]["id"]]
        for count, price in list(_products(order, trap))[: 1 if trap == "one line an order" else None]:
            units[buyer] += count
            spend[order["currency"]] += count * price
            if count:
                bought_in[buyer].append(order["id"] if trap != "lines for orders" else str(len(bought_in[buyer])))
    if trap != "buyers with nothing left":
        units = +units
    sizes = {"EUR": 100, "JPY": 1, "KWD": 1000}
    if trap in ("smallest units", "two decimals everywhere"):
        sizes = dict.fromkeys(sizes, 1 if trap == "smallest units" else 100)
    return {
        "buyers": len(units),
        "units": sum(units.values()),
        "spend": {currency: spend[currency] / size for currency, size in sizes.items()},
        "top_buyer": max(units, key=lambda buyer: units[buyer]),
        "repeat_buyers": sorted(buyer for buyer, ids in bought_in.items() if len(set(ids)) > 2),
    }


def _products(order: dict[str, Any], trap: str) -> Iterator[tuple[int, int]]:
    """Units kept and unit price, for each line and component of the SKU asked for."""
    missing = 0 if trap == "missing quantity is zero" else 1
    for line in (line for shipment in order["shipments"] for line in shipment["lines"]):
        returned = 0 if trap == "returns ignored" else line.get("returned", 0)
        if trap == "bundles' returns ignored" and "components" in line:
            returned = 0
        kept = max(line.get("quantity", missing) - returned, 0)
        for product in line.get("components", [line]):
            each = product.get("quantity", missing) if product is not line else 1
            if trap == "bundles hold one of each":
                each = 1
            if product is not line and trap == "bundles ignored":
                continue
            sku = product["sku"].removesuffix("-R") if trap == "refurbished counted" else product["sku"]
            if sku == "KB-204" or (trap == "SKU by its beginning" and sku.startswith("KB-204")):
                yield kept * each, product["unit_price"]


def salaries_sqlite(files: Path, trap: str = "") -> dict[str, Any]:
    db = sqlite3.connect(f"{(files / 'company.db').as_uri()}?mode=ro&immutable=1", uri=True)
    departments: dict[int, str] = dict(db.execute("SELECT id, name FROM departments"))
    staff = {number for number, kind in db.execute("SELECT id, kind FROM employees") if kind == "staff"}
    if trap == "contractors counted":
        staff = {number for (number,) in db.execute("SELECT id FROM employees")}
    assignments = list(db.execute("SELECT * FROM assignments ORDER BY valid_from"))
    history: defaultdict[int, list[tuple[str, int | None]]] = defaultdict(list)
    for number, since, cents, period in db.execute("SELECT * FROM salaries ORDER BY effective_from"):
        yearly = cents * 12 if cents is not None and period == "month" and trap != "months for years" else cents
        history[number].append((since, yearly))
    db.close()

    paid: dict[str, dict[str, list[int]]] = {}
    for year in ("2022", "2023", "2024"):
        day = f"{year}-{'12-31' if trap == 'end of the year' else '06-30'}"
        paid[year] = {name: [] for name in departments.values()}
        for number, department, role, since, until in assignments:
            working = since <= day and (until is None or day < until or (day == until and trap == "last day included"))
            if trap == "department of today":
                working = until is None
            if number in staff and working and (role == "main" or trap == "side rows counted"):
                paid[year][departments[department]] += _salaries(history[number], day, trap)
    empty = Fraction(0) if trap == "nobody is zero" else None
    averages = {
        year: {name: Fraction(sum(all_), 100 * len(all_)) if all_ else empty for name, all_ in row.items()}
        for year, row in paid.items()
    }
    change: dict[str, float | None] = {}
    for name in departments.values():
        first, last = averages["2022"][name], averages["2024"][name]
        base = last if trap == "percent of the last" else first
        change[name] = float(round(100 * (last - first) / base, 2)) if first and last and base else None
    return {
        "averages": {
            year: {name: None if value is None else float(round(value, 2)) for name, value in row.items()}
            for year, row in averages.items()
        },
        "headcount": {year: {name: len(all_) for name, all_ in row.items()} for year, row in paid.items()},
        "change_percent": change,
        "largest_rise": max(change, key=lambda name: -100.0 if (rise := change[name]) is None else rise),
    }


def _salaries(history: list[tuple[str, int | None]], day: str, trap: str) -> list[int]:
    """The salary of the day, if there is one; several where the trap says so."""
    if trap == "salary of today":
        day = "9999"
    so_far = [cents for since, cents in history if since < day or (since == day and trap != "from the day after")]
    if trap == "leave falls back":
        so_far = [cents for cents in so_far if cents is not None]
    if trap == "all rows up to the day":
        return [cents for cents in so_far if cents is not None]
    if trap == "leave is zero":
        return [cents or 0 for cents in so_far[-1:]]
    return [cents for cents in so_far[-1:] if cents is not None]


Solver = Callable[[Path, str], dict[str, Any]]
SOLVERS: dict[str, Solver] = {
    "sales-by-region": sales_by_region,
    "failed-logins": failed_logins,
    "inventory-bug": inventory_bug,
    "orders-json": orders_json,
    "salaries-sqlite": salaries_sqlite,
}
# for each task: a key of the answer, and the traps that make it wrong
TRAPS: dict[str, dict[str, tuple[str, ...]]] = {
    "sales-by-region": {
        "net_cents": (
            *("a line is a row", "a line is a row, quotes understood", "rows sent twice", "region as typed"),
            *("Midlands forgotten", "calendar quarters", "years mixed", "thousands dropped"),
        ),
        "total_cents": ("voids counted", "refunds ignored", "refunds added"),
    },
    "failed-logins": {
        "attempts": ("invalid users left out", "first address", "addresses as written", "mapped addresses apart"),
        "addresses": ("only IPv4", "words anywhere in the message", "any program", "whole log"),
        "total": (
            *("last day left out", "only sshd", "repeats left out", "a repeat is one", "repeats include the first"),
            "any method",
        ),
    },
    "inventory-bug": {
        "total_cents": (
            *("code left as it is", "only the failing test", "tiers begin one later", "damaged pieces in the tier"),
            *("discounts added up", "half to even", "rounded in between", "line rounded, not the piece"),
            "damaged pieces valued",
        ),
        "wrong_lines": ("only the failing test", "half to even", "code left as it is"),
    },
    "orders-json": {
        "buyers": ("customers not merged", "merged one step", "buyers with nothing left"),
        "units": (
            *("cancelled counted", "drafts counted", "one line an order", "returns ignored", "bundles ignored"),
            *("bundles' returns ignored", "bundles hold one of each", "missing quantity is zero"),
            *("refurbished counted", "SKU by its beginning"),
        ),
        "spend": ("smallest units", "two decimals everywhere"),
        "repeat_buyers": ("lines for orders",),
    },
    "salaries-sqlite": {
        "averages": (
            *("months for years", "end of the year", "salary of today", "from the day after", "leave falls back"),
            *("all rows up to the day", "nobody is zero"),
        ),
        "headcount": (
            *("contractors counted", "last day included", "department of today", "side rows counted", "leave is zero"),
        ),
        "change_percent": ("percent of the last", "leave is zero", "contractors counted"),
    },
}
EACH_TRAP = [(name, key, trap) for name, by_key in TRAPS.items() for key, traps in by_key.items() for trap in traps]
each_task = pytest.mark.parametrize("name", SOLVERS)


def _load(name: str) -> tuple[Task, Mapping[str, Any]]:
    task = load_task(TASKS / name, name)
    assert task.expected is not None
    return task, task.expected


def test_the_five_tasks_are_all_there_is() -> None:
    assert {path.name for path in TASKS.iterdir() if path.is_dir()} == set(SOLVERS)


@each_task
def test_it_loads_without_a_warning(name: str) -> None:
    task, _ = _load(name)
    assert task.warnings == ()
    assert task.tags
    assert task.solution is not None
    assert sum(file.size for file in task.files) <= 200_000


@each_task
def test_its_own_solution_earns_the_reward(name: str, tmp_path: Path) -> None:
    task, expected = _load(name)
    shutil.copytree(TASKS / name / "files", tmp_path, dirs_exist_ok=True)
    for path in tmp_path.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)  # as files arrive in a sandbox
    subprocess.run(["bash", "-s"], input=task.solution, cwd=tmp_path, env=ENVIRONMENT, check=True)
    answer = read_answer((tmp_path / "outputs/answer.json").read_bytes())
    assert grade_answer(expected, answer, task.tolerance).reasons == ()
    assert answer.value.keys() == expected.keys()


@each_task
def test_a_second_solution_agrees(name: str) -> None:
    _, expected = _load(name)
    assert SOLVERS[name](TASKS / name / "files", "") == expected


@rows(("name", "key", "trap"), EACH_TRAP)
def test_a_careless_reading_earns_nothing(name: str, key: str, trap: str) -> None:
    task, expected = _load(name)
    grade = grade_answer(expected, Answer(SOLVERS[name](TASKS / name / "files", trap)), task.tolerance)
    assert grade.reward == 0.0
    assert key in {re.split(r"[.\[]", reason.path)[0] for reason in grade.reasons}


@each_task
def test_the_instruction_ends_with_the_contract(name: str) -> None:
    task, expected = _load(name)
    contract = task.instruction.rpartition("Write the answer to `/workspace/outputs/answer.json`")[2]
    assert re.findall(r"^- `(\w+)`: ", contract, re.M) == list(expected)
    assert contract.strip().splitlines()[-1].startswith(("- `", "  "))  # nothing comes after the keys


@each_task
def test_no_input_reveals_the_answer(name: str) -> None:
    task, expected = _load(name)
    sources = [task.instruction.encode(), task.solution or b"", *(file.read() for file in task.files)]
    values = [json.dumps(value, separators=(",", ":")).encode() for value in expected.values()]
    tables = [value for value in values if value[:1] in b"{["]
    assert tables
    for source in (re.sub(rb"\s", b"", source) for source in sources):
        assert not any(table in source for table in tables)
        assert not all(value in source for value in values)
