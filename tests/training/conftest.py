from __future__ import annotations

import pytest

from tests.support.exporting import Exporter


@pytest.fixture
def export(capfdbinary: pytest.CaptureFixture[bytes]) -> Exporter:
    return Exporter(capfdbinary)
