"""`reap RUN_ID` deletes the Sessions that a run left on its Core, after a kill -9 or an unreachable server."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import time

from pytest_core_rollouts.agents_api import Client
from pytest_core_rollouts.agents_api.address import require_secure_url
from pytest_core_rollouts.agents_api.errors import short_line
from pytest_core_rollouts.cli import CommandError
from pytest_core_rollouts.options.values import duration
from pytest_core_rollouts.rollout.dialects import OPENAI, OPENAI_URL
from pytest_core_rollouts.rollout.session_deletion import Sweep, sweep

_TIMEOUT = 300.0
"""Seconds for all requests together."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_id", metavar="RUN_ID", help="the run id, as pytest printed it; also the name of its file")
    parser.add_argument(
        "--older-than", metavar="TIME", type=_duration, help="only Sessions older than this: 90s, 30m, 2h, 1d"
    )
    parser.add_argument(
        "--core",
        metavar="URL|openai",
        help="the Core, or `openai`, as the run had it; default: $OPENAI_BASE_URL. Its key: $OPENAI_API_KEY",
    )


def _duration(text: str) -> float:
    try:
        return duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(arguments: argparse.Namespace) -> int:
    """Return 0 if no Session of the run is left; 1 if one is, or the Core's list could not be read."""
    if not re.fullmatch(
        r"[A-Za-z0-9_-]+", arguments.run_id
    ):  # a file name would find no Session, which looks like success
        raise CommandError(f"invalid run id {arguments.run_id!r}; use the file's name without folder and .jsonl")
    base_url, key = _core(arguments.core)
    before = None if arguments.older_than is None else time.time() - arguments.older_than
    print(f"looking for Sessions of {arguments.run_id} at {base_url}", file=sys.stderr)  # it may take minutes
    found = asyncio.run(
        sweep(lambda: Client(base_url, key), arguments.run_id, since=None, before=before, seconds=_TIMEOUT)
    )
    return print_result(found, arguments.run_id)


def _core(url: str | None) -> tuple[str, str]:
    """Return the base URL and the key. Raises CommandError."""
    if url in (None, OPENAI.name):
        url = os.environ.get("OPENAI_BASE_URL") or (OPENAI_URL if url else None)
    if not url:
        raise CommandError("no Core configured; set OPENAI_BASE_URL and OPENAI_API_KEY, or pass --core URL")
    try:
        base_url = require_secure_url(url)
    except ValueError as error:
        raise CommandError(str(error)) from None
    key = os.environ.get("OPENAI_API_KEY")
    if not key:
        raise CommandError(f"no API key for the Core at {base_url}; set OPENAI_API_KEY")
    return base_url, key


def print_result(found: Sweep, run_id: str) -> int:
    """Print what a sweep did and return the exit code."""
    for session_id in found.deleted:
        print(f"deleted {short_line(session_id)}")
    for session_id, reason in found.left.items():
        print(f"left {short_line(session_id)}: {reason}")
    if found.kept:
        print(f"kept {found.kept} Sessions of {run_id} that are younger")
    if found.problem is not None:
        print(f"the Core's list of Sessions could not be read completely: {found.problem}")
    elif not found.deleted and not found.left and not found.kept:
        print(f"no Sessions of {run_id} found")
    return 1 if found.left or found.problem is not None else 0
