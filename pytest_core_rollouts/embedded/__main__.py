"""`python -m pytest_core_rollouts.embedded`: serve on an inherited socket until stdin closes.

The first line of stdin is a JSON object of settings. The response is one line on stdout: {"folders": [PATH, ...]} once
it serves (everything that it keeps on disk; the parent removes it if this process is killed), or {"error": TEXT}.
"""

from __future__ import annotations

import json
import logging
import sys

_MISSING_EXTRA = (
    "The embedded Core needs the extra 'embedded' ({missing} is not installed): "
    "pip install 'pytest-core-rollouts[embedded]'"
)


def main() -> int:
    """Serve; return the exit status."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 1  # the parent is gone
    try:
        from . import server
    except ModuleNotFoundError as error:
        return _respond_error(_MISSING_EXTRA.format(missing=error.name))
    try:
        settings = server.Settings(**json.loads(line))
        server.serve(settings, ready=lambda folders: _respond({"folders": [str(folder) for folder in folders]}))
    except server.SandboxUnavailable as error:
        return _respond_error(str(error))
    return 0


def _respond(value: dict[str, object]) -> None:
    print(json.dumps(value), flush=True)


def _respond_error(reason: str) -> int:
    _respond({"error": reason})
    return 1


if __name__ == "__main__":
    sys.exit(main())
