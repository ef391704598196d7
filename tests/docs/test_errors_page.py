"""docs/errors.md is current: it is compared with the tables that the code uses."""

from __future__ import annotations

from types import ModuleType

import pytest

from pytest_core_rollouts.agents_api.fault_policies import (
    RESPONSE_FAULTS,
    TURN_FAULTS,
    ClientFault,
    LocalFault,
    SessionFault,
)
from tests.support.generators import DOCS, load_generator


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return load_generator("generate_errors")


def test_errors_page_is_current(generator: ModuleType) -> None:
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    assert page == generator.errors_page(), "run `python docs/generate_errors.py`"


def test_every_error_has_a_row_of_eight_cells() -> None:
    rows = [line for line in (DOCS / "errors.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    tables = (RESPONSE_FAULTS, ClientFault, TURN_FAULTS, SessionFault, LocalFault)
    assert len(rows) == sum(len(table) for table in tables)
    assert {row.count(" | ") for row in rows} == {7}
