"""`reap RUN_ID`: deletes the Sessions that a run left on its Core, after a kill -9 or a server that was away."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import time

from pytest_core_rollouts.agents_api import Client
from pytest_core_rollouts.agents_api.address import require_secure_url
from pytest_core_rollouts.agents_api.errors import printable
from pytest_core_rollouts.cli import CommandError
from pytest_core_rollouts.options.values import duration
from pytest_core_rollouts.rollout.session_deletion import Sweep, sweep

HELP = "Cancel and delete the Sessions that a run left on its Core, and name those that can't be deleted."
SECONDS = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_id", metavar="RUN_ID", help="the run, as it was printed and as its file is called")
    parser.add_argument(
        "--older-than", metavar="TIME", type=_duration, help="only Sessions created that long ago: 90s, 30m, 2h, 1d"
    )
    parser.add_argument("--core", metavar="URL", help="the Core; default: $OPENAI_BASE_URL. Its key: $OPENAI_API_KEY")


def _duration(text: str) -> float:
    try:
        return duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(arguments: argparse.Namespace) -> int:
    """0 when nothing of the run is left; 1 where something is, or the Core's list could not be read."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", arguments.run_id):  # of such a one no Session is left, which would read well
        raise CommandError(
            f"{arguments.run_id!r} is no run id: that is what the run's file is called, without folder and .jsonl"
        )
    base_url, key = _core(arguments.core)
    before = None if arguments.older_than is None else time.time() - arguments.older_than
    print(f"looking for Sessions of {arguments.run_id} at {base_url}", file=sys.stderr)  # it may take minutes
    found = asyncio.run(
        sweep(lambda: Client(base_url, key), arguments.run_id, since=None, before=before, seconds=SECONDS)
    )
    return tell(found, arguments.run_id)


def _core(url: str | None) -> tuple[str, str]:
    """Base URL and key. Raises CommandError."""
    url = url or os.environ.get("OPENAI_BASE_URL")
    if not url:
        raise CommandError("no Core: set OPENAI_BASE_URL and OPENAI_API_KEY, or say --core URL")
    try:
        base_url = require_secure_url(url)
    except ValueError as error:
        raise CommandError(str(error)) from None
    key = os.environ.get("OPENAI_API_KEY")
    if not key:
        raise CommandError(f"the Core at {base_url} needs a key: set OPENAI_API_KEY")
    return base_url, key


def tell(found: Sweep, run_id: str) -> int:
    """Print what a sweep did; the exit code."""
    for session_id in found.deleted:
        print(f"deleted {printable(session_id)}")
    for session_id, reason in found.left.items():
        print(f"left {printable(session_id)}: {reason}")
    if found.kept:
        print(f"{found.kept} Sessions of {run_id} are younger than that and were left alone")
    if found.problem is not None:
        print(f"the Core's list of Sessions could not be read to its end: {found.problem}")
    elif not found.deleted and not found.left and not found.kept:
        print(f"no Sessions of {run_id}")
    return 1 if found.left or found.problem is not None else 0
