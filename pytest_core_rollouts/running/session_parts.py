"""What a session's run is made of: its store and its Core, from its options or from what the controller passed on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_core_rollouts.engine.caps import Caps
from pytest_core_rollouts.engine.core_access import CoreAccess, EmbeddedOptions
from pytest_core_rollouts.engine.cost_cap import CostCap
from pytest_core_rollouts.engine.resume import Resumed
from pytest_core_rollouts.engine.store import RowStore
from pytest_core_rollouts.options.settings import Settings
from pytest_core_rollouts.records.record import RecordsError

RESUMED_ROWS = "resumed"
"""The file that passes the rows of a resumed run to workers."""


def make_store(
    settings: Settings, out: Path, resumed: Resumed | None, shared: Path | None, on_failure: Callable[[str], None]
) -> RowStore:
    """Return the store of the run's rows. `shared`: the folder that all processes of the run share, if any."""
    return RowStore(
        out,
        resumed=resumed,
        items=settings.items,
        hide_expected=settings.hide_expected,
        caps=_caps(settings, shared),
        on_failure=on_failure,
    )


def make_core(settings: Settings, given: dict[str, Any]) -> CoreAccess:
    """Return the run's Core. `given`: what the controller passed to this worker; empty in other processes."""
    options = (
        EmbeddedOptions(settings.capture, settings.model_params, settings.capture_tokens) if settings.embedded else None
    )
    return CoreAccess(
        given.get("base_url") or (None if settings.embedded else settings.core),
        given.get("api_key") or (None if settings.embedded else settings.core_key),
        embedded=options,
        dialect=settings.dialect,
    )


def resumed_rows(given: dict[str, Any]) -> Resumed | None:
    """Return the rows of a resumed run that the controller passed to this worker."""
    if not given["resumes"]:
        return None
    return Resumed.load(Path(given["folder"]) / RESUMED_ROWS, Path(given["out"]), given["run_id"])


def default_out(config: pytest.Config, settings: Settings, resumed: Resumed | None, run_id: str) -> Path:
    """Return the JSONL file of a run."""
    if resumed is not None:
        return resumed.path
    shard = "" if settings.shard is None else ".shard-{}-of-{}".format(*settings.shard)
    return settings.out or config.rootpath / "runs" / f"{run_id}{shard}.jsonl"


def refuse_known_rows(store: RowStore, run_id: str) -> None:
    """Raise pytest.UsageError if the file has rows of a run of this name: they would be counted twice."""
    out = store.path
    if out is None or not out.exists():
        return
    try:
        is_known = next(store.rows(run_id), None) is not None
    except RecordsError as error:
        raise pytest.UsageError(str(error)) from None
    if is_known:
        raise pytest.UsageError(
            f"--rollout-run: {out} has rows of run {run_id} already; continue that run with "
            f"--rollout-resume {out}, or choose another id"
        )


def _caps(settings: Settings, shared: Path | None) -> Caps:
    cost = None
    if settings.max_cost is not None and settings.prices is not None:
        cost = CostCap(settings.max_cost, settings.prices, settings.allow_unknown_cost, shared)
    return Caps(settings.max_time, settings.max_tokens, cost, shared)


def check_pytest_options(config: pytest.Config) -> None:
    """Raise pytest.UsageError for options of pytest that don't work with rollouts."""
    if config.getoption("stepwise", False):
        raise pytest.UsageError(
            "--stepwise continues from the first failure in the order of collection, but rollouts finish in another "
            "order; use -x, and then --lf or --ff"
        )
    if config.getoption("forked", False):
        raise pytest.UsageError(
            "--forked runs each item in its own process, where no rollout is in flight; remove it for rollouts"
        )
    if config.getoption("dist", "no") == "each":
        raise pytest.UsageError("--dist each runs everything in every worker, but a rollout runs once; remove it")
