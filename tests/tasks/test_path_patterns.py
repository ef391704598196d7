"""Patterns of `outputs`: what they match, and that no name of a file stalls them."""

from __future__ import annotations

import re
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_core_rollouts.tasks.task_settings import PathPattern
from tests.support.tables import rows


@rows(
    ("pattern", "right", "wrong"),
    [
        ("fix.patch", ["fix.patch"], ["fix.patch2", "a/fix.patch", "fixxpatch", "", "FIX.PATCH"]),
        ("reports/*.md", ["reports/a.md", "reports/.md"], ["reports/a/b.md", "reports/.txt", "reports/"]),
        ("logs/**", ["logs/a", "logs/b/c.txt", "logs/"], ["logs", "xlogs/a"]),
        ("**/data.json", ["data.json", "x/y/data.json"], ["mydata.json", "x/mydata.json", "/data.json"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a/xb", "a/x/yb"]),
        ("?.t*", ["a.t", "é.txt"], ["/.t", "ab.t", ".t"]),
        ("*", ["a", "a\nb", "*", ""], ["a/b"]),
        ("[a]+(b", ["[a]+(b"], ["a", "aa"]),
    ],
)
def test_what_a_pattern_matches(pattern: str, right: list[str], wrong: list[str]) -> None:
    assert [path for path in right if not PathPattern(pattern).matches(path)] == []
    assert [path for path in wrong if PathPattern(pattern).matches(path)] == []


@settings(deadline=None)
@given(st.text("ab/*?", max_size=10), st.text("ab/", max_size=10))
def test_it_matches_as_the_regular_expression_would(pattern: str, path: str) -> None:
    special = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    expression = "".join(special.get(part, re.escape(part)) for part in parts)
    assert PathPattern(pattern).matches(path) == (re.fullmatch(expression, path) is not None)


@rows("pattern", ["*_*_*_*.md", "**/*_**_*/**/x", "*" + "_*" * 50])
def test_no_name_stalls_it(pattern: str) -> None:
    matcher = PathPattern(pattern)
    start = time.process_time()
    for number in range(4000):
        assert not matcher.matches(f"{'_' * 250}{number}/{'_/' * 10}y")
    assert time.process_time() - start < 30
