"""A table of cases in one test: a case of `pytest.mark.parametrize` costs each process milliseconds, a row nothing."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


def rows(
    names: str | Sequence[str],
    values: Iterable[Any],
    *,
    ids: Callable[[Any], object] | Iterable[object] | None = None,
) -> Callable[[Test], Test]:
    """Like `pytest.mark.parametrize`, but the test runs all rows, and then fails with the name and traceback of each.

    The rows share the test's fixtures, such as `tmp_path`. A row can't be skipped.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [case if len(keys) > 1 else (case,) for case in values]
    given = None if ids is None or callable(ids) else list(ids)
    assert cases, "a table without rows tests nothing"
    assert given is None or len(given) == len(cases)

    def label(number: int) -> str:
        if given is not None:
            return str(given[number])
        try:
            return ", ".join(str(ids(value)) if callable(ids) else repr(value)[:200] for value in cases[number])
        except ValueError:  # an integer that is too long to be printed
            return f"number {number + 1}"

    def decorate(test: Test) -> Test:
        def run_rows(**fixtures: Any) -> None:
            failures = []
            for number, case in enumerate(cases):
                try:
                    test(**dict(zip(keys, case, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # noqa: BLE001 - reported
                    failures.append(f"row {label(number)}:\n{''.join(traceback.format_exception(error))}")
            if failures:
                pytest.fail(f"{len(failures)} of {len(cases)} rows failed\n\n" + "\n".join(failures), pytrace=False)

        signature = inspect.signature(test)
        unknown = [key for key in keys if key not in signature.parameters]
        assert not unknown, f"{test.__name__} has no parameter {unknown}"
        others = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        run_rows.__name__, run_rows.__qualname__, run_rows.__doc__ = test.__name__, test.__qualname__, test.__doc__
        run_rows.__module__ = test.__module__
        run_rows.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        run_rows.__wrapped__ = test  # type: ignore[attr-defined]  # pytest shows where the test is
        run_rows.pytestmark = getattr(test, "pytestmark", [])  # type: ignore[attr-defined]
        return run_rows

    return decorate
