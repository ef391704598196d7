"""The frontier: tasks marked as beyond agents, and which of them an agent has come to solve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_core_rollouts.records import RolloutRecord


class Frontier:
    """Counts the rows of tasks that were expected to fail, as they go by."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], dict[str, bool]] = {}

    def noting(self, records: Iterable[RolloutRecord]) -> Iterator[RolloutRecord]:
        """The same records."""
        for record in records:
            if record.settings.get("xfail"):
                samples = self._samples.setdefault((record.task, str(record.agent.get("slug", ""))), {})
                if record.graded or record.rollout_id not in samples:  # a fault may have been run again
                    samples[record.rollout_id] = record.solved
            yield record

    @property
    def gained(self) -> list[str]:
        """A line for each task and agent of which at least half of the samples pass; faults count as samples."""
        return [
            f"{task} by {agent}: {sum(solved.values())} of {len(solved)} samples pass; its xfail can go"
            for (task, agent), solved in sorted(self._samples.items())
            if 2 * sum(solved.values()) >= len(solved)
        ]
