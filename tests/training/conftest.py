from __future__ import annotations

import pytest

from tests.training.exporting import Exporter


@pytest.fixture
def export(capfdbinary: pytest.CaptureFixture[bytes]) -> Exporter:
    return Exporter(capfdbinary)
