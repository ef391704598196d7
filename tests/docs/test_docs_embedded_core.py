"""docs/embedded-core.md has the harnesses, error codes and numbers of the code."""

from __future__ import annotations

from pathlib import Path

from pytest_core_rollouts.embedded import server, sessions
from pytest_core_rollouts.embedded.harnesses import HARNESSES, claude_sdk, codex, native
from pytest_core_rollouts.embedded.launch import HARNESSES as SERVED
from pytest_core_rollouts.embedded.model import ModelSettings, exchange, failures, inside_url, proxy
from pytest_core_rollouts.embedded.sandbox import cgroups, isolation, watch
from pytest_core_rollouts.embedded.sandbox.limits import GIB, MIB, Limits

PAGE = (Path(__file__).parents[2] / "docs" / "embedded-core.md").read_text("utf-8")


def test_page_lists_every_harness_with_its_protocol_and_parameters() -> None:
    for name in SERVED:
        [row] = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
        for protocol in HARNESSES[name].protocols or ("none",):
            assert protocol in row
    assert f"`model_reasoning_effort`: {', '.join(codex._EFFORTS)} |" in PAGE
    assert f"`effort`: {', '.join(claude_sdk._EFFORTS)};" in PAGE
    assert all(f"type: {kind}" in PAGE for kind in claude_sdk._THINKING)


def test_page_lists_every_error_code() -> None:
    codes = {
        *failures._STATUS.values(),
        *failures._EVENT_CODES.values(),
        *(code for code, _ in failures._STOPS.values()),
    }
    codes |= {"connection_failed", "usage_limit_exceeded", "server_error"}
    assert [code for code in codes if f"`{code}`" not in PAGE] == []


def test_numbers_of_the_page_are_those_of_the_code() -> None:
    limits = Limits()
    assert (limits.disk, limits.memory, limits.address_space, limits.file_size) == (GIB, 4 * GIB, 16 * GIB, GIB)
    assert (limits.entries, limits.processes, limits.cpu_s) == (200_000, 512, 3600)
    assert (limits.descriptors, limits.mappings) == (65_536, 500_000)
    assert (limits.open_files, limits.inotify_instances, limits.in_flight) == (1024, 8, 256)
    assert (watch._INTERVAL_S, watch._TICK_S, watch._URGENT_MEMORY_BYTES) == (0.5, 0.05, 128 * MIB)
    assert (watch._URGENT_DISK_BYTES, watch._URGENT_FILES) == (32 * MIB, 5_000)
    assert (isolation.TMP_BYTES, isolation.SHM_BYTES) == (256 * MIB, 64 * MIB)
    assert (native.LINES, native.EVENTS_LIMIT) == (20_000, 128 * MIB)
    assert (proxy.AT_ONCE, exchange.CAPTURE_LIMIT) == (8, 32 * MIB)
    assert (ModelSettings().idle_s, ModelSettings().retries) == (300, 2)
    assert (sessions.AGENT_MEMORY, server._MOST_AGENTS) == (384 * MIB, 256)
    for text in (
        "| 1 GiB, 200,000 entries |",
        "| memory of all processes | 4 GiB |",
        "| 65,536 and 500,000 |",
        "| open files of one process | 1,024 |",
        "| inotify instances | 8 |",
        "not received) | 256 |",
        "lost another 128 MiB",
        "lost another 32 MiB or 5,000 files",
        f"`{cgroups.VARIABLE}`",
        "| processes and threads | 512 |",
        "| 16 GiB, 1 GiB |",
        "20,000 lines, 128 MiB a Turn",
        "eight requests under way",
        "larger than 32 MiB",
        "says nothing for 300 s",
        "384 MiB each, at most 256",
        f"`{inside_url().removeprefix('http://')}` is the model",
    ):
        assert text in PAGE, text
