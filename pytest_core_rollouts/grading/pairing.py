"""Pair as many elements of two sides as can be, given which ones fit: for lists whose order does not count."""

from __future__ import annotations

from collections.abc import Sequence


def most_pairs(matches: Sequence[Sequence[int]]) -> dict[int, int]:
    """A maximum matching: `matches[left]` are the right ones that fit; gives left -> right (Hopcroft and Karp 1973)."""
    pairs: dict[int, int] = {}
    taken: dict[int, int] = {}
    while True:
        depth = {left: 0 for left in range(len(matches)) if left not in pairs}
        wave = list(depth)
        free = False
        while wave and not free:
            following = []
            for left in wave:
                for right in matches[left]:
                    if (owner := taken.get(right)) is None:
                        free = True
                    elif owner not in depth:
                        depth[owner] = depth[left] + 1
                        following.append(owner)
            wave = following
        if not free:
            return pairs
        for left in [left for left in range(len(matches)) if left not in pairs]:
            _augment(left, matches, depth, pairs, taken)


def _augment(
    start: int, matches: Sequence[Sequence[int]], depth: dict[int, int], pairs: dict[int, int], taken: dict[int, int]
) -> None:
    """Pair `start`, moving others along a shortest path, if there is one. No recursion: the path may be long."""
    way = [(start, iter(matches[start]))]
    chosen: list[int] = []
    while way:
        left, rest = way[-1]
        for right in rest:
            owner = taken.get(right)
            if owner is None:
                for (one, _), other in zip(way, [*chosen, right], strict=True):
                    pairs[one], taken[other] = other, one
                return
            if depth.get(owner) == depth[left] + 1:
                chosen.append(right)
                way.append((owner, iter(matches[owner])))
                break
        else:
            depth.pop(left)  # nothing goes on from here in this round
            way.pop()
            if chosen:
                chosen.pop()
