"""The cheapest ring through a group of GPUs, whatever a hop's cost means."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any

from advisor.rules.machine import Value

EXACT = 8  # GPUs; above, the search is greedy

Cost = Callable[[str, str], int]
Paths = dict[tuple[int, int], tuple[int, tuple[int, ...]]]  # (visited, last) -> (cost, order), as bits and positions


class Ring(Value, frozen=True, kw_only=True):
    order: tuple[str, ...]
    bandwidth: float | None = None  # bytes per second, one direction, that NCCL's rings in this order should move


def hops(order: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the neighbours on a ring: one hop for two GPUs, none for one."""
    if len(order) < 2:
        return
    yield from pairwise(order)
    if len(order) > 2:
        yield order[-1], order[0]


def steep_cost(grades: dict[frozenset[str], Any]) -> Cost:
    """Turn grades of links (higher is better) into costs: one worse hop costs more than a ring of better ones.

    A pair without a grade, whose link the source has lost, costs more than any other.
    """
    ranks = {grade: rank for rank, grade in enumerate(sorted(set(grades.values()), reverse=True))}
    base = len({end for pair in grades for end in pair}) + 1
    costs = {pair: base ** ranks[grade] for pair, grade in grades.items()}
    lost = base ** len(ranks)
    return lambda a, b: costs.get(frozenset((a, b)), lost)


def ring_order(gpus: Sequence[str], cost: Cost) -> tuple[str, ...]:
    """Order GPUs on the ring of least total cost: exact for 8 and fewer, else nearest neighbours improved by 2-opt.

    Costs grow so steeply with a hop's rank (see `steep_cost`) that the least total has the best slowest hop.
    """
    if len(gpus) <= 3:
        return tuple(gpus)
    return _held_karp(gpus, cost) if len(gpus) <= EXACT else _two_opt(gpus, cost)


def _held_karp(gpus: Sequence[str], cost: Cost) -> tuple[str, ...]:
    """Find the cheapest ring by dynamic programming over subsets (Held and Karp 1962), from the first GPU on."""
    first, *rest = gpus
    matrix = [[cost(a, b) for b in rest] for a in rest]
    paths: Paths = {(1 << i, i): (cost(first, gpu), (i,)) for i, gpu in enumerate(rest)}
    for _ in range(len(rest) - 1):
        longer: Paths = {}
        for (visited, last), (total, path) in paths.items():
            for i, step in enumerate(matrix[last]):
                key = (visited | 1 << i, i)
                if not visited & 1 << i and (key not in longer or total + step < longer[key][0]):
                    longer[key] = (total + step, (*path, i))
        paths = longer
    _, path = min((total + cost(rest[last], first), path) for (_, last), (total, path) in paths.items())
    return (first, *(rest[i] for i in path))


def _two_opt(gpus: Sequence[str], cost: Cost) -> tuple[str, ...]:
    """Visit the nearest GPU next, then reverse stretches of the ring as long as that makes it cheaper."""
    order, left = [gpus[0]], list(gpus[1:])
    while left:
        order.append(min(left, key=lambda gpu: cost(order[-1], gpu)))
        left.remove(order[-1])
    size, improved = len(order), True
    while improved:
        improved = False
        for i, j in combinations(range(size), 2):
            a, b, c, d = order[i - 1], order[i], order[j], order[(j + 1) % size]
            if a != c and cost(a, c) + cost(b, d) < cost(a, b) + cost(c, d):
                order[i : j + 1] = reversed(order[i : j + 1])
                improved = True
    start = order.index(gpus[0])
    return tuple(order[start:] + order[:start])
