"""The table of fields in docs/records.md is generated from the record's columns."""

from __future__ import annotations

from tests.support.generators import DOCS, load_generator


def test_table_of_fields_is_generated_from_the_columns() -> None:
    generator = load_generator("generate_records")
    page = (DOCS / "records.md").read_text(encoding="utf-8")
    assert page == generator.records_page(page), "run `python docs/generate_records.py`"
