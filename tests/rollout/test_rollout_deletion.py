"""A Session is deleted after its record was kept; where it can't be, it is named and the result stands."""

from __future__ import annotations

import pytest

from pytest_core_rollouts.records.record import RolloutRecord
from pytest_core_rollouts.rollout.runner import Timeouts
from tests.support.api import quick
from tests.support.fake_core import FakeCore, Fault, Script
from tests.support.rollouts import RIGHT, on, only_session, plan, refused, run
from tests.support.waiting import no_hang


def test_a_deletion_that_fails_three_times_is_tried_a_fourth() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        core.fault = on("delete", refused(500, "no"), last=3)
        ran = run(core)
        assert ran.verdict == ("completed", 1.0)
        assert ran.warnings == ()
        assert only_session(core).deleted


@pytest.mark.parametrize(
    "fault", [refused(500, "no"), Fault(reset=True), Fault(hang=True), Fault(status=200, body=b"?")]
)
def test_a_deletion_that_never_works_is_a_warning(fault: Fault) -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        core.fault = on("delete", fault)
        with no_hang():
            ran = run(core, plan(retries=3), retry=quick(patience=3600.0))
        assert ran.verdict == ("completed", 1.0)
        assert ran.record.error is None
        assert ran.record.notes == []
        (warning,) = ran.warnings
        assert warning.startswith(f"Session {only_session(core).id} of {ran.record.rollout_id} is left behind: DELETE ")
        assert len(core.sessions) == 1


def test_a_session_that_settles_slowly_is_waited_for() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT, settle_seconds=0.4)) as core:
        ran = run(core, timeouts=Timeouts(delete=5.0))
        assert ran.warnings == ()
        assert only_session(core).deleted
        assert core.counts["delete"] < 10


def test_a_session_that_is_already_deleted_is_not_a_fault() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        core.fault = on("delete", refused(404, "Resource not found.", "not_found_error"))
        assert run(core).warnings == ()


def test_the_next_slot_goes_on_after_a_session_that_stays() -> None:
    with FakeCore(script=lambda body: Script(answer=RIGHT, settle_seconds=3600)) as core:
        with no_hang():
            ran = run(core)
        assert ran.verdict == ("completed", 1.0)
        assert "409" in ran.warnings[0]


@pytest.mark.slow
def test_a_spoiled_attempt_s_session_is_named_too() -> None:
    with FakeCore(script=lambda body: Script(session_failure="no room")) as core:
        core.fault = on("delete", refused(500, "no"))
        ran = run(core, plan(retries=1))
        assert ran.record.attempt == 2
        assert len(ran.warnings) == 2
        assert all(session_id in warning for session_id, warning in zip(core.sessions, ran.warnings, strict=True))


def test_a_record_that_can_not_be_kept_leaves_the_session_and_is_reported() -> None:
    class DiskFull(Exception):
        pass

    def save(record: RolloutRecord) -> None:
        raise DiskFull("no space left on the device")

    with FakeCore(script=lambda body: Script(answer=RIGHT)) as core:
        with pytest.raises(DiskFull):
            run(core, save=save)
        assert not only_session(core).deleted


def test_a_session_without_a_result_is_deleted_although_its_record_can_not_be_kept() -> None:
    class DiskFull(Exception):
        pass

    def save(record: RolloutRecord) -> None:
        assert not only_session(core).deleted
        raise DiskFull("no space left on the device")

    with FakeCore(script=lambda body: Script(session_failure="no room")) as core:
        with pytest.raises(DiskFull):
            run(core, plan(retries=0), save=save)
        assert only_session(core).deleted
