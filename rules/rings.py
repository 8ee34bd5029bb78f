"""The cheapest ring through a group of GPUs, whatever a hop's cost means."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from advisor.rules.machine import Value
from advisor.rules.ring_search import EXACT, cheapest_ring

Cost = Callable[[str, str], int]


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


def ring_order(gpus: Sequence[str], cost: Cost, exact: int = EXACT) -> tuple[str, ...]:
    """Order GPUs on the ring of least total cost, from the first on; above `exact` GPUs it may not be the very best.

    Costs grow so steeply with a hop's rank (see `steep_cost`) that the least total has the best slowest hop.
    """
    if len(gpus) <= 3:
        return tuple(gpus)
    return tuple(gpus[i] for i in cheapest_ring(cost_matrix(gpus, cost), exact))


def cost_matrix(gpus: Sequence[str], cost: Cost) -> list[list[int]]:
    """Tabulate the cost between each two GPUs; 0 on the diagonal, which no ring uses."""
    matrix = [[0] * len(gpus) for _ in gpus]
    for i, a in enumerate(gpus):
        for j in range(i):
            matrix[i][j] = matrix[j][i] = cost(a, gpus[j])
    return matrix
