"""Figures and verdicts in the files that pytest's own tools read: JUnit's XML, and what `--lf` runs again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from pytest_core_rollouts.results.gate import Judgment
from pytest_core_rollouts.results.scores import METRICS_SHOWN
from pytest_core_rollouts.results.summary import Summary
from pytest_core_rollouts.text import one_line

CLASS_NAME: Final = "rollouts.gate"
_LAST_FAILED: Final = "cache/lastfailed"


def add_to_junit(path: Path, summary: Summary, judgments: Iterable[Judgment]) -> None:
    """Add to the XML that pytest wrote: figures as properties, and a test case for each gate and agent.

    Rollouts that a gate judges don't fail by themselves, so without these test cases every dashboard would be green.
    Raises OSError if the file can't be read or written, ValueError if it is not what pytest writes.
    """
    try:
        tree = ElementTree.parse(path)
    except ElementTree.ParseError as error:
        raise ValueError(f"not XML: {error}") from None
    if (suite := tree.find(".//testsuite")) is None:
        raise ValueError("no <testsuite> in it")
    _add_figures(suite, summary)
    for judgment in judgments:
        for name, verdict in judgment.rows:
            case = ElementTree.SubElement(suite, "testcase", classname=CLASS_NAME, name=name, time="0.000")
            if not verdict.passed:
                text = one_line(str(Judgment(name, verdict.passed, verdict.text)))
                ElementTree.SubElement(case, "failure", message=text).text = text
                suite.set("failures", str(int(suite.get("failures", "0")) + 1))
            suite.set("tests", str(int(suite.get("tests", "0")) + 1))
    partial = path.with_name(f"{path.name}.part")
    tree.write(partial, encoding="utf-8", xml_declaration=True)
    partial.replace(path)


def _add_figures(suite: ElementTree.Element, summary: Summary) -> None:
    """Add each agent's figures to the suite's properties, with its label in brackets if there are several agents."""
    properties = suite.find("properties")
    if properties is None:
        properties = ElementTree.Element("properties")
        suite.insert(0, properties)
    for label, rounds in summary.rounds.items():  # of a run that stopped early
        whose = f" [{one_line(label)}]" if len(summary.rounds) > 1 else ""
        ElementTree.SubElement(properties, "property", name=f"rounds{whose}", value=str(rounds))
    for agent in summary.agents:
        whose = f" [{one_line(agent.label)}]" if len(summary.agents) > 1 else ""
        for name, found in agent.figures(summary.ks).items():
            ElementTree.SubElement(properties, "property", name=f"{name}{whose}", value=str(found))
        for metric in agent.metrics[:METRICS_SHOWN]:
            name = f"metric {one_line(metric.name)}{whose}"
            ElementTree.SubElement(properties, "property", name=name, value=str(metric))


def remember_unsolved(cache: pytest.Cache, node_ids: Iterable[str]) -> None:
    """Add rollouts to what `--lf` runs again, after pytest has written what failed by itself."""
    failed: Mapping[str, bool] = cache.get(_LAST_FAILED, {})
    cache.set(_LAST_FAILED, {**failed, **dict.fromkeys(node_ids, True)})
