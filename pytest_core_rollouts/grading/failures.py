"""How a grader failed, and at which line."""

from __future__ import annotations

import traceback
from pathlib import Path

_OURS = str(Path(__file__).parents[1])


class GraderFailed(Exception):
    """A grader raised, crashed or took too long; `str()` says which. `code` is the fault's in docs/errors.md."""

    code = "grader"

    def __init__(self, problem: str, brief: str | None = None) -> None:
        super().__init__(problem)
        self._brief = brief

    @property
    def brief(self) -> GraderFailed:
        """The same without the grader's own words."""
        return self if self._brief is None else GraderFailed(self._brief)

    @classmethod
    def by(cls, kind: str, text: str, place: str) -> GraderFailed:
        """A grader raised an exception of this type and text; `place` is where, such as ` (grader.py:3)`."""
        brief = f"the grader raised {kind}, its text left out (--rollout-hide-expected){place}"
        return cls(f"the grader raised {kind}: {text}{place}", brief)


def place_of(error: BaseException, file: Path | None = None) -> str:
    """Where an exception was raised, such as ` (grader.py:3)`: in `file`, else the innermost line that is not ours."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if file is not None and frame.filename == str(file)]
    frames = own or [frame for frame in frames if _is_theirs(frame.filename)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _is_theirs(file: str) -> bool:
    if file.startswith((_OURS, "<")):  # "<string>": a dataclass of ours
        return False
    return "_pytest" not in Path(file).parts  # pytest.fail() is called from theirs
