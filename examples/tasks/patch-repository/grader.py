"""Applies a patch to a copy of the repository and runs hidden tests on it, in a sandbox.

The reward is the share of hidden tests that pass, or 0 if the repository's own tests fail.
"""

from __future__ import annotations

import json
from pathlib import Path

from pytest_core_rollouts import Grade, Reason, Task, run_in_sandbox

HIDDEN = Path(__file__).parent / "hidden"

CHECK = r"""
set -eu
git apply --whitespace=nowarn /workspace/fix.patch 2>&1 || { echo PATCH; exit 3; }
rm -f fix.patch
python3 -m unittest discover -q -s tests -t . 2>&1 || { echo OWN; exit 4; }
mv hidden/test_hidden.py . && exec python3 report.py
"""

REPORT = b"""
import json, sys, unittest
suite = unittest.defaultTestLoader.loadTestsFromName("test_hidden")
names = [test.id().split(".")[-1] for test in suite._tests[0]]
result = unittest.TestResult()
suite.run(result)
failed = {test.id().split(".")[-1]: error.strip().splitlines()[-1] for test, error in result.failures + result.errors}
print(json.dumps({name: failed.get(name) for name in names}))
"""


def grade(task: Task, artifacts: dict[str, bytes]) -> Grade:
    if "fix.patch" not in artifacts:
        return Grade(0.0, note="no fix.patch in /workspace/outputs")
    files = {**task.contents(), "fix.patch": artifacts["fix.patch"], "report.py": REPORT}
    files["hidden/test_hidden.py"] = (HIDDEN / "test_hidden.py").read_bytes()
    done = run_in_sandbox(["bash", "-c", CHECK], files, timeout=30)
    output = done.output.decode("utf-8", "replace")
    if done.timed_out or done.returncode:
        why = {3: "the patch does not apply", 4: "the repository's own tests fail"}
        return Grade(0.0, note=f"{why.get(done.returncode, 'the tests did not finish')}: {output[-500:]}")
    return _share(output)


def _share(output: str) -> Grade:
    try:  # the patched code may have printed anything
        results = json.loads(output.splitlines()[-1])
        failed = {name: error for name, error in results.items() if error is not None}
        return Grade(
            1 - len(failed) / len(results), tuple(Reason(name, "passes", error) for name, error in failed.items())
        )
    except (ValueError, AttributeError, IndexError, ZeroDivisionError):
        return Grade(0.0, note=f"the tests gave no result: {output[-500:]}")
