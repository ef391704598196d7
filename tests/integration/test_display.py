"""The live display: what a terminal shows at the end, what it showed meanwhile, and what a log says."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from fcntl import ioctl

import pytest

from pytest_core_rollouts.report.progress import Progress, State
from pytest_core_rollouts.running import display
from tests.integration.conftest import RIGHT, WRONG, Project, outcomes, text_of
from tests.support.fake_core import FakeCore, Script
from tests.support.running import PATIENCE

WIDTH = 90
LIVE = re.compile(r"(?m)^\d+/\d+( [✓✗!]\d+)*( · .*)?$")


class Screen:
    """What a terminal makes of what is written to it: lines, and every state of the redrawn one."""

    def __init__(self, width: int = WIDTH) -> None:
        self.width = width
        self.lines = [""]
        self.live: list[str] = []
        self._row = 0
        self._column = 0

    def feed(self, text: str) -> None:
        text = re.sub(r"\x1b\[[0-9;?]*[B-Za-z]", lambda code: code[0] if code[0][-1] in "CK" else "", text)  # colors
        for part in re.findall(r"\x1b\[\d*[ACK]|[^\r\n\x1b]+|\r|\n", text):
            if part == "\r":
                self._column = 0
            elif part == "\n":
                self._next_row()
            elif part.endswith("K"):
                self.lines[self._row] = line = self.lines[self._row][: self._column]
                self.live += [line] * bool(LIVE.search(line))
            elif part.startswith("\x1b"):
                count = int(part[2:-1] or 1)
                self._row -= count if part.endswith("A") else 0
                self._column += count if part.endswith("C") else 0
            else:
                self._put(part)

    def _next_row(self) -> None:
        self._row += 1
        self.lines += [""] * (self._row == len(self.lines))

    def _put(self, text: str) -> None:
        if len(text) > self.width - self._column:
            fits = self.width - self._column
            self._put(text[:fits])
            self._next_row()
            self._column = 0
            self._put(text[fits:])
            return
        line = self.lines[self._row].ljust(self._column)
        self.lines[self._row] = line[: self._column] + text + line[self._column + len(text) :]
        self._column += len(text)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines)


def on_a_terminal(
    project: Project,
    *args: str,
    env: dict[str, str] | None = None,
    width: int = WIDTH,
    interrupt: Callable[[bytes], bool] | None = None,
) -> tuple[Screen, int]:
    """pytest on a terminal; what the terminal shows, and the exit code. Ctrl-C is pressed when `interrupt` says so."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args],
        cwd=project.path,
        env={**os.environ, "TERM": "xterm", **(env or {})},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),  # the terminal sends its process group SIGINT
    )
    os.close(theirs)
    screen, deadline, data = Screen(width), time.monotonic() + PATIENCE, b""
    while time.monotonic() < deadline:
        ready = select.select([ours], [], [], 1)[0]
        try:
            chunk = os.read(ours, 65536) if ready else b"" if process.poll() is None else None
        except OSError:  # Linux says so when the other end is closed
            chunk = None
        if chunk is None:
            break
        data += chunk
        if interrupt is not None and interrupt(data):
            os.write(ours, b"\x03")
            interrupt = None
    os.close(ours)
    code = process.wait(10)
    screen.feed(data.decode("utf-8", "replace").replace("\r\n", "\n\r"))
    return screen, code


@pytest.fixture
def paced(project: Project, core: FakeCore) -> Project:
    """Twelve rollouts of about a second, four at a time; task b is wrong. Two unit tests."""
    project.task("a", yaml="samples: 8")
    project.task("b", yaml="samples: 4")
    project.unit_tests()
    core.script = lambda body: Script(
        answer=WRONG if body["metadata"]["task"] == "b" else RIGHT, turn_seconds=0.9, usage={"total_tokens": 1500}
    )
    return project


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--color=no",),
        ("-q",),
        pytest.param(("-n", "2"), marks=pytest.mark.slow),
        ("-n", "2", "--rollout-concurrency", "2"),
    ],
    ids=" ".join,
)
def test_a_terminal_shows_one_line_that_is_redrawn(paced: Project, args: tuple[str, ...]) -> None:
    screen, code = on_a_terminal(paced, "tests", "tasks", *args)
    assert code == 1, screen.text
    assert len(screen.live) > 3, screen.text
    assert not LIVE.search(screen.text)  # it is gone in the end
    assert "4 failed, 10 passed" in screen.text
    for line in screen.live:  # nothing else was ever on it
        assert len(line) < WIDTH
        assert re.fullmatch(
            r"\d+/12( [✓✗]\d+)*( · \d+ running(, oldest \d+ s( \S+)?)?)?( · [\d.]+k tokens)?( · ~\d+ s left)?",
            line,
        ), line
    assert re.search(r"^[48]/12 ✓[48] ", "\n".join(screen.live), re.MULTILINE)
    progress = re.findall(r"(\d+)/12 .*? · ([\d.]+)k tokens", "\n".join(screen.live))
    assert progress
    assert all(float(tokens) == 1.5 * int(done) for done, tokens in progress)
    assert "s left" in " ".join(screen.live)
    in_flight = [int(number) for number in re.findall(r"(\d+) running", "\n".join(screen.live))]
    assert 1 <= max(in_flight) <= (2 if args == ("-n", "2") else 4)
    ran = screen.text.partition("= FAILED ROLLOUTS")[0]
    failures = re.findall(r"^✗ b default-default (\d): reward 0: \S.*$", ran, re.MULTILINE)  # as they happen
    assert sorted(failures) == ([] if "-q" in args else ["0", "1", "2", "3"])
    assert "instruction.md" not in ran
    assert re.search(r"^12 rollouts +\[ *\d+%\]$", ran, re.MULTILINE), ran  # no percentage next to nothing
    unit = re.search(r"^(tests/test_unit.py )?\.\.(\s+\[ *\d+%\])?$", screen.text, re.MULTILINE)
    assert unit or "-n" in args, screen.text


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=len)
def test_ctrl_c_is_followed_by_one_line_of_what_did_not_run(
    project: Project, core: FakeCore, workers: tuple[str, ...]
) -> None:
    """The terminal echoes `^C` after the progress line, which is as long as the terminal is wide."""
    for number in range(13):
        project.task(f"task-{number:02}")
    core.script = lambda body: Script(answer=RIGHT, turn_seconds=0.0 if len(core.sessions) < 3 else 3600.0)
    args = ("tasks", "--samples", "4", *workers)
    in_flight = 2 if workers else 4

    def ready(shown: bytes) -> bool:
        return b"3/52 \xe2\x9c\x933 \xc2\xb7 %d running" % in_flight in shown and len(core.sessions) == 3 + in_flight

    screen, code = on_a_terminal(project, *args, width=45, interrupt=ready)
    assert code == 2, screen.text
    assert re.findall(r"^not run.*", screen.text, re.MULTILINE) == ["not run: 49 rollouts of 13 tasks (-v lists th"]
    assert f"interrupted: {in_flight} rollouts that were in flight" in screen.text
    assert not re.search(r"3/52 |\^C|reported to pytest", screen.text)
    core.script = lambda body: Script(answer=RIGHT, usage={"total_tokens": 9_999_999})
    listed = project.run_apart(*args, "-v", "--rollout-resume", str(project.results[0]), "--rollout-max-tokens", "1")
    assert "not run: task-12 default-default 0-3" in listed.outlines


@pytest.mark.parametrize("width", [80, 200])
def test_the_final_table_fits_the_terminal(paced: Project, width: int) -> None:
    screen, _ = on_a_terminal(paced, "tasks", "--rollout-gate", "mean>=0.9", width=width)
    end = screen.text.rstrip().partition("= rollouts =")[2].splitlines()
    tables = [line for line in end if line.startswith("|")]
    assert len(tables) > 6
    assert max(map(len, tables)) <= width
    heads = [cell.strip() for cell in tables[0].strip("|").split("|")]
    assert ("mean duration (s)" in heads) == (width == 200)
    assert {"graded", "mean reward", "95% interval"} < set(heads)
    assert end[-3].startswith("gate mean>=0.9: failed: 0.500 < 0.9")
    assert end[-2].startswith("runs/")
    assert {"4 unsolved", "8 solved"} == set(re.findall(r"\d \w+(?=,| in )", end[-1]))


def test_verbose_keeps_a_line_for_each_test(paced: Project) -> None:
    screen, code = on_a_terminal(paced, "tests", "tasks", "-v")
    assert code == 1
    assert len(screen.live) > 3, screen.text
    assert not LIVE.search(screen.text)
    verdicts = re.findall(r"^(\S+::\S+) (PASSED|FAILED) +\[ *\d+%\]$", screen.text, re.MULTILINE)
    assert len(verdicts) == 14, screen.text
    assert len(set(verdicts)) == 14
    assert re.search(r"^tests/.+\n(.+::.+\n){13}\n=+ FAILED ROLLOUTS", screen.text, re.MULTILINE), (
        screen.text
    )  # no gaps


def test_the_line_does_not_overwrite_what_tests_print(paced: Project) -> None:
    paced.write("tests/test_unit.py", "def test_loud():\n    print('spoken', end='')\n")
    screen, _ = on_a_terminal(paced, "tests", "tasks", "-s", "-v")
    assert len(screen.live) > 3, screen.text
    assert re.search(r"^tests/test_unit.py::test_loud spokenPASSED", screen.text, re.MULTILINE), screen.text


def test_verbose_keeps_a_line_for_each_test_with_workers(paced: Project) -> None:
    screen, _ = on_a_terminal(paced, "tasks", "-v", "-n", "2", "--rollout-concurrency", "2")
    assert len(screen.live) > 3, screen.text
    assert not LIVE.search(screen.text)
    verdicts = re.findall(r"^\[gw\d\] \[ *\d+%\] (PASSED|FAILED) (\S+::\S+) *$", screen.text, re.MULTILINE)
    assert len(verdicts) == 12, screen.text


def test_the_lines_of_the_baseline_gate_are_not_mixed_with_other_lines(paced: Project) -> None:
    paced.run("tasks", "--rollout-out", "main.jsonl")
    gate = ("--rollout-gate", "baseline", "--rollout-baseline", "main.jsonl")
    screen, _ = on_a_terminal(paced, "tasks", "-n", "2", "--rollout-concurrency", "4", *gate)
    assert re.search(r"^gate baseline can ", screen.text, re.MULTILINE), screen.text


def test_errors_are_counted_in_the_line(project: Project, core: FakeCore) -> None:
    project.task("a", yaml="samples: 4")
    core.script = lambda body: Script(turn_status="failed", turn_seconds=float(body["metadata"]["sample"]))
    screen, _ = on_a_terminal(project, "tasks", "--rollout-retries", "0")
    assert re.search(r"\d/4 .*!1 · \d running, .* · ~", "\n".join(screen.live)), screen.live


def test_captured_output_does_not_contain_the_line(project: Project, core: FakeCore) -> None:
    project.task("a")
    condition = "import pytest\n\ndef pytest_collection_modifyitems(items):\n    for item in items: item.add_marker("
    project.write("conftest.py", condition + "pytest.mark.skipif(False, reason='no'))\n")
    core.script = lambda body: Script(answer=WRONG, turn_seconds=2)
    screen, _ = on_a_terminal(project, "tasks")
    assert screen.live
    assert "Captured" not in screen.text
    assert not LIVE.search(screen.text)


@pytest.mark.parametrize(
    ("args", "env"), [(("-qq",), {}), ((), {"TERM": "dumb"}), (("-p", "no:terminal"), {})], ids=["qq", "dumb", "none"]
)
def test_options_and_terminals_without_a_redrawn_line(
    paced: Project, args: tuple[str, ...], env: dict[str, str]
) -> None:
    screen, code = on_a_terminal(paced, "tasks", *args, env=env)
    assert code == 1, screen.text
    assert not screen.live


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log gets a line twice a second."""
    monkeypatch.setattr(display, "LINE", 0.5)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    "args", [(), ("-v",), ("-q",), pytest.param(("-n", "2"), marks=pytest.mark.slow), ("-s",)], ids=" ".join
)
def test_a_log_gets_lines_at_intervals(paced: Project, args: tuple[str, ...]) -> None:
    result = paced.run("tasks", "tests", *args)
    assert outcomes(result) == {"passed": 10, "failed": 4}
    live = [line for line in result.outlines if re.match(r"rollouts: \d+/", line)]
    assert 2 <= len(live) <= 20, text_of(result)
    assert all(re.match(r"rollouts: \d+/12( [✓✗]\d+)* · ", line) for line in live), live
    assert not any("\r" in line for line in result.outlines)
    if args == ("-v",):
        verdicts = re.findall(r"^\S+::\S+ (?:PASSED|FAILED)", text_of(result), re.MULTILINE)
        assert len(verdicts) == 14, text_of(result)


@pytest.mark.usefixtures("often")
def test_a_log_gets_no_lines_with_qq(paced: Project) -> None:
    assert not [line for line in paced.run("tasks", "-qq").outlines if LIVE.search(line)]


def test_a_short_run_prints_no_progress(project: Project) -> None:
    project.task()
    assert not [line for line in project.run("tasks").outlines if LIVE.search(line)]


def test_the_progress_line_shows_counts_and_never_cuts_the_time_left() -> None:
    progress = Progress(total=40, places=8)
    state = State(8, "", "sql/joins", time.time() - 372.5)
    assert progress.line(State(8)) == "0/40 · 8 running"
    progress.note(1.0, 1_200_000, 10.0, solved=True)
    progress.note(0.5, None, 20.0, solved=False)
    progress.note(None, None, 0.0, solved=False)
    whole = "3/40 ✓1 ✗1 !1 · 8 running, oldest 6m12 sql/joins · 1.2M tokens · ~62 s left"
    assert progress.line(state) == progress.line(state, len(whole)) == whole
    shorter = [progress.line(state, columns) for columns in range(len(whole), 0, -1)]
    assert all(len(line) <= columns for line, columns in zip(shorter, range(len(whole), 0, -1), strict=True))
    assert list(dict.fromkeys(shorter))[:5] == [
        whole,
        "3/40 ✓1 ✗1 !1 · 8 running, oldest 6m12 sql/joins · ~62 s left",
        "3/40 ✓1 ✗1 !1 · 8 running, oldest 6m12 · ~62 s left",
        "3/40 ✓1 ✗1 !1 · 8 running · ~62 s left",
        "3/40 ✓1 ✗1 !1 · ~62 s left",
    ]
    waiting = progress.line(State(8, "waiting for the Core: connection refused"), 60)
    assert waiting == "3/40 ✓1 ✗1 !1 · ~62 s left · waiting for the Core: connection refused"[:60]


@pytest.mark.parametrize(
    ("total", "places", "done", "seconds"),
    [(10, 1, 5, 45.0), (10, 10, 1, 5.0), (10, 4, 6, 5.0), (10, 4, 2, 15.0), (10, 4, 10, None), (10, 4, 0, None)],
)
def test_the_progress_line_estimates_the_time_left(total: int, places: int, done: int, seconds: float | None) -> None:
    progress = Progress(total, places)
    for _ in range(done):
        progress.note(1.0, None, 10.0, solved=True)
    assert progress.seconds_left == seconds
