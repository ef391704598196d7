"""`python -m pytest_core_rollouts.embedded`: serve on an inherited socket until stdin closes.

The first line of stdin is a JSON object of settings; one line on stdout answers it: {"folders": [PATH, ...]} when it
serves (all that it keeps on disk, for the parent to remove should it be killed), or {"error": TEXT}.
"""

from __future__ import annotations

import json
import logging
import sys

_EXTRA = (
    "The embedded Core needs the extra 'embedded' ({missing} is not installed): "
    "pip install 'pytest-core-rollouts[embedded]'"
)


def main() -> int:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 1  # the parent is gone
    try:
        from . import server
    except ModuleNotFoundError as error:
        return _refuse(_EXTRA.format(missing=error.name))
    try:
        settings = server.Settings(**json.loads(line))
        server.serve(settings, ready=lambda folders: _answer({"folders": [str(folder) for folder in folders]}))
    except server.SandboxUnavailable as error:
        return _refuse(str(error))
    return 0


def _answer(value: dict[str, object]) -> None:
    print(json.dumps(value), flush=True)


def _refuse(why: str) -> int:
    _answer({"error": why})
    return 1


if __name__ == "__main__":
    sys.exit(main())
