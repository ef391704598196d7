"""What caps count, in one process and over a folder that several share."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pytest_core_rollouts.engine.caps import Caps
from tests.support.waiting import HANG_SECONDS


@pytest.fixture(params=["one-process", "shared"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "shared" else None


def test_without_limits_nothing_is_reached_and_nothing_written(tmp_path: Path) -> None:
    caps = Caps(folder=tmp_path)
    caps.start()
    caps.spend(10**12)
    caps.spend(None)
    assert caps.reached() is None
    assert list(tmp_path.iterdir()) == []


def test_the_limit_is_reached_with_the_last_token(folder: Path | None) -> None:
    caps = Caps(max_tokens=300, folder=folder)
    for tokens in (100, 100, 99):
        caps.spend(tokens)
        assert caps.reached() is None
    caps.spend(1)
    assert caps.reached() == "--rollout-max-tokens 300 is reached: 300 tokens spent"


def test_unknown_usage_is_reported_and_does_not_count_as_0(folder: Path | None) -> None:
    caps = Caps(max_tokens=1000, folder=folder)
    for tokens in (None, 0, None, 1234):
        caps.spend(tokens)
    assert caps.reached() == (
        "--rollout-max-tokens 1000 is reached: 1,234 tokens spent, and those of 2 attempts, which are unknown"
    )
    assert (caps.tokens, caps.unknown) == (1234, 2)


def test_the_first_reason_stays(folder: Path | None) -> None:
    caps = Caps(max_tokens=100, folder=folder)
    caps.spend(100)
    first = caps.reached()
    caps.spend(50)
    assert caps.reached() == first == caps.stopped


def test_time_counts_from_the_first_start(folder: Path | None) -> None:
    caps = Caps(max_time=0.2, folder=folder)
    time.sleep(0.25)
    assert caps.reached() is None, "nothing has started"
    caps.start()
    began = time.monotonic()
    while caps.reached() is None:
        assert time.monotonic() - began < HANG_SECONDS
        time.sleep(0.01)
    assert time.monotonic() - began >= 0.19
    assert caps.stopped == "--rollout-max-time 0.2 (seconds) is reached"


def test_the_first_start_of_several_processes_counts(tmp_path: Path) -> None:
    several = [Caps(max_time=60 * number, folder=tmp_path) for number in (1, 2, 3)]
    threads = [threading.Thread(target=caps.start) for caps in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({caps.until for caps in several}) == 1
    assert several[0].until is not None


SPEND = """
import sys
from pathlib import Path
from pytest_core_rollouts.engine.caps import Caps
from tests.support.waiting import HANG_SECONDS

caps = Caps(max_time=3600, max_tokens=10**9, folder=Path(sys.argv[1]))
for _ in range(200):
    caps.spend(7)
    caps.spend(None)
print(caps.reached(), caps.until)
"""


def test_processes_share_tokens_and_the_end_of_the_time(tmp_path: Path) -> None:
    mine = Caps(max_time=3600, max_tokens=10**9, folder=tmp_path)
    mine.start()
    command = [sys.executable, "-c", SPEND, str(tmp_path)]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for _ in range(200):
        mine.spend(5)
        mine.count()
    printed = {other.communicate()[0] for other in others}
    assert printed == {f"None {mine.until}\n"}
    mine.count()
    assert (mine.tokens, mine.unknown) == (200 * 5 + 2 * 200 * 7, 2 * 200)


def test_tokens_of_all_threads_are_counted(folder: Path | None) -> None:
    caps = Caps(max_tokens=10**9, folder=folder)

    def spend() -> None:
        for _ in range(500):
            caps.spend(3)
            caps.reached()

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    caps.reached()
    assert caps.tokens == 4 * 500 * 3


def test_a_line_counts_once_it_is_complete(tmp_path: Path) -> None:
    caps = Caps(max_tokens=100, folder=tmp_path)
    (tmp_path / "tokens").write_bytes(b"50\n1")
    assert caps.reached() is None
    assert caps.tokens == 50
    with (tmp_path / "tokens").open("ab") as file:
        file.write(b"00\n")
    assert caps.reached() == "--rollout-max-tokens 100 is reached: 150 tokens spent"
