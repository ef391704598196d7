"""Partial credit: half of the reward for the topics of the reviews, the other half for two numbers."""

from __future__ import annotations

from pytest_core_rollouts import Answer, Grade, Reason, Task, grade_answer


def grade(task: Task, answer: Answer) -> Grade:
    if not isinstance(answer.value, dict):
        return Grade(0.0, note=answer.problem or "expected a JSON object")
    right = task.expected["topics"]
    given = answer.value.get("topics")
    given = given if isinstance(given, dict) else {}
    wrong = [Reason(f"topics.{review}", topic, given.get(review)) for review, topic in right.items()
             if given.get(review) != topic]
    reward = 0.5 * (1 - len(wrong) / len(right))
    reasons = list(wrong)
    for key, share in (("counts", 0.25), ("average_stars", 0.25)):
        part = grade_answer({key: task.expected[key]}, answer, task.tolerance)  # the usual rules, for one key
        reward += share * part.reward
        reasons += part.reasons
    return Grade(reward, tuple(reasons))
