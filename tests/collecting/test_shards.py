"""How a run is divided into shards."""

from __future__ import annotations

import random

from pytest_core_rollouts.collecting.shards import split

GROUPS = {(task, agent): range(4) for task in ("a", "b/c", "d", "e", "f") for agent in ("codex", "claude")}


def test_every_group_is_in_one_shard_and_shards_have_the_same_amount_of_work() -> None:
    found = split(GROUPS, 3, {})
    assert found.shards.keys() == GROUPS.keys()
    sizes = [list(found.shards.values()).count(shard) for shard in (1, 2, 3)]
    assert sorted(sizes) == [3, 3, 4]
    assert set(split(GROUPS, 20, {}).shards.values()) == set(range(1, 11))


def test_the_split_depends_on_nothing_but_its_input() -> None:
    shuffled = dict(random.Random(1).sample(sorted(GROUPS.items()), len(GROUPS)))
    assert split(shuffled, 3, {}) == split(GROUPS, 3, {})
    others = [
        split(GROUPS, 2, {}),
        split({**GROUPS, ("a", "codex"): range(3)}, 3, {}),
        split({key: samples for key, samples in GROUPS.items() if key[0] != "a"}, 3, {}),
        split(GROUPS, 3, {("a", "codex"): 60.0, ("d", "codex"): 1.0}),
    ]
    assert len({one.digest for one in (split(GROUPS, 3, {}), *others)}) == 5


def test_a_long_group_is_balanced_by_many_short_ones() -> None:
    seconds = {key: 100.0 if key == ("a", "codex") else 10.0 for key in GROUPS}
    found = split(GROUPS, 2, seconds)
    assert sum(shard == found.shards["a", "codex"] for shard in found.shards.values()) == 1
    assert split(GROUPS, 2, {("a", "codex"): 100.0}).shards == split(GROUPS, 2, {}).shards, "the rest is as long"
