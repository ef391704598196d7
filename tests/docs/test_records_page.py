"""The table of fields in docs/records.md is generated from the record's columns."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_table_of_fields_is_generated_from_the_columns() -> None:
    spec = importlib.util.spec_from_file_location("generate_records", DOCS / "generate_records.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    page = (DOCS / "records.md").read_text(encoding="utf-8")
    assert page == generator.records_page(page), "run `python docs/generate_records.py`"
