"""What a hostile agent is, and the scripts that many of them share."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

MARK = "mallory"
"""Is in every name that an agent makes outside of files: sockets, shared memory."""
SEGMENT_KEY = 0x6D616C6C
"""Of every System V segment, queue and set of semaphores that an agent makes."""


@dataclass(frozen=True)
class Hostile:
    """An agent, its task, and what its row must say.

    An agent whose reward is 1 misbehaves but answers right: it is given what it earned.
    """

    name: str
    script: str
    """A bash script. With the `codex` harness it is the model's one command."""
    status: str = "completed"
    reward: float = 0.0
    codes: tuple[str | None, ...] = (None,)
    """The codes that the Turn's error may have; None: no error."""
    says: str = ""
    """Is in the row's error, or in what the script printed."""
    never_says: str = ""
    """Is in none of them."""
    expected: Any = None
    """expected.json; None: {"x": 1} if the reward is 1, else something that nobody can guess."""
    yaml: str = ""
    """Further lines of task.yaml."""
    rounds: int = 10
    """How long its neighbors work; a round takes a tenth of a second or more."""


def python(code: str) -> str:
    return f"python3 - <<'END-OF-SCRIPT'\n{textwrap.dedent(code).strip()}\nEND-OF-SCRIPT\n"


def answering(text: str) -> str:
    """A script that writes this Python expression of bytes as the answer."""
    return python(f"import os\nos.makedirs('outputs', exist_ok=True)\nopen('outputs/answer.json', 'wb').write({text})")


RIGHT = "\nmkdir -p outputs && echo '{\"x\": 1}' >outputs/answer.json\n"
"""Writes the right answer."""

CALLS = '''
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    """The name of the error, or None if the system call did what was asked."""
    ctypes.set_errno(0)
    longs = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = libc.syscall(ctypes.c_long(number), *longs)
    return None if result >= 0 else errno.errorcode[ctypes.get_errno()]

def attempt(action):
    """The name of the error, or None if it succeeded."""
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    except (ValueError, AttributeError) as error:
        return str(error)

def answer_if_refused(results):
    """Write the right answer only if every door was closed."""
    opened = {name: result for name, result in results.items() if result is None}
    print("OPENED", opened, "of", results)
    if not opened:
        os.makedirs("outputs", exist_ok=True)
        open("outputs/answer.json", "w").write('{"x": 1}')
'''
"""Python that tries doors; the agent answers right only if none opened."""


def doors(code: str) -> str:
    return f"python3 - <<'END-OF-SCRIPT'\n{CALLS}\n{textwrap.dedent(code).strip()}\nEND-OF-SCRIPT\n"
