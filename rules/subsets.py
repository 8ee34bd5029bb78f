"""Which GPUs to take where a job does not take them all."""

from collections.abc import Iterator, Sequence
from math import inf, prod
from typing import Any

from advisor.rules.format import folded
from advisor.rules.machine import LinkKind, Machine, Value
from advisor.rules.ring_search import (
    EXACT,
    Matrix,
    least_cost,
    path_layers,
    quick_ring,
    ring_cost,
    twins_before,
)
from advisor.rules.rings import cost_matrix
from advisor.rules.topology import hop_cost, islands, shape_of, slowest_link

MOST_SETS = 1024  # sets of GPUs that differ, up to which all are compared: 10 GPUs without twins, 16 in fours

EXACT_SUBSET = 11  # GPUs; between these and all, a ring that is nearly the best will do

Kind = tuple[str, int]  # model, memory


class Subset(Value, frozen=True, kw_only=True):
    """The GPUs with the best ring of all groups of their number."""

    gpus: tuple[str, ...]
    code: str | None = None  # of the slowest link of their ring
    kind: LinkKind | None = None
    bandwidth: float | None = None  # bytes per second of that link, one direction


def subsets_of(machine: Machine) -> tuple[Subset, ...]:
    """Return the best group of each size with the slowest link of its ring, from two GPUs on."""
    found = []
    for gpus in best_subsets(machine):
        slowest = slowest_link(machine, gpus, EXACT if len(gpus) == len(machine.gpus) else EXACT_SUBSET)
        if slowest is None:
            found.append(Subset(gpus=gpus))
        else:
            found.append(Subset(gpus=gpus, code=slowest.code, kind=slowest.kind, bandwidth=slowest.bandwidth))
    return tuple(subset for subset in found if len(subset.gpus) > 1)


def gpu_groups(machine: Machine) -> tuple[tuple[str, ...], ...]:
    """List the subsets worth planning for: all, equal GPUs, one of each shape of island, the best 1, 2, 4, 8, ..."""
    everything = tuple(gpu.id for gpu in machine.gpus)
    doubled = [group for group in best_subsets(machine) if len(group).bit_count() == 1 and group != everything]
    groups = [everything, *_equal_gpus(machine), *_distinct_islands(machine), *doubled]
    return tuple(dict.fromkeys(group for group in groups if group))


def best_subsets(machine: Machine) -> tuple[tuple[str, ...], ...]:
    """Choose for each number of GPUs those with the best ring among them.

    Of equal ones those of the fewest models, then with more memory, then the first. All sets are compared where they
    are few; else those that grow from one GPU by the nearest of the others. Above `EXACT` GPUs there is one for each
    power of two, and all.
    """
    ids = [gpu.id for gpu in machine.gpus]
    kinds = [(str(gpu.name), gpu.memory or 0) for gpu in machine.gpus]
    matrix = cost_matrix(ids, hop_cost(machine))
    before = twins_before(matrix, kinds)
    sizes = [n for n in range(1, len(ids) + 1) if len(ids) <= EXACT or n.bit_count() == 1 or n == len(ids)]
    if _distinct_sets(before) <= MOST_SETS:
        chosen = _best_of_all(matrix, before, kinds)
    else:
        chosen = {size: _best_grown(matrix, before, kinds, size) for size in sizes}
    return tuple(tuple(ids[i] for i in chosen[size]) for size in sizes)


def _distinct_sets(before: Sequence[int]) -> int:
    """Count the sets of positions that differ by more than twins changing places."""
    twins = [0] * len(before)
    for i, earlier in enumerate(before):
        head = (earlier & -earlier).bit_length() - 1 if earlier else i
        twins[head] += 1
    return prod(count + 1 for count in twins)


def _best_of_all(matrix: Matrix, before: Sequence[int], kinds: Sequence[Kind]) -> dict[int, tuple[int, ...]]:
    best: dict[int, tuple[Any, ...]] = {}
    for visited, cost in _ring_costs(matrix, before):
        subset = tuple(i for i in range(len(matrix)) if visited >> i & 1)
        key = (cost, *_mixture(subset, kinds), subset)
        best[len(subset)] = min(key, best.get(len(subset), key))
    return {size: key[-1] for size, key in best.items()}


def _ring_costs(matrix: Matrix, before: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield every distinct set of positions, as bits, with the cost of its cheapest ring."""
    for first in range(len(matrix)):
        if before[first]:
            continue
        for size, layer in enumerate(path_layers(matrix, first, before), 1):
            for visited, ends in layer.items():
                yield visited, min(cost + (matrix[last][first] if size > 2 else 0) for last, cost in ends.items())


def _best_grown(matrix: Matrix, before: Sequence[int], kinds: Sequence[Kind], size: int) -> tuple[int, ...]:
    """Compare the sets that grow from each position, the purest first; stop at one that no ring can undercut."""
    grown = {tuple(sorted(_grown(matrix, seed, size))) for seed in range(len(matrix)) if not before[seed]}
    bound = least_cost(matrix, size)
    best: tuple[int, ...] = ()
    least: float = inf
    for subset in sorted(grown, key=lambda subset: (*_mixture(subset, kinds), subset)):
        inner = [[matrix[a][b] for b in subset] for a in subset]
        cost = ring_cost(quick_ring(inner), inner)
        if cost < least:
            best, least = subset, cost
        if cost <= bound:
            break
    return best


def _grown(matrix: Matrix, seed: int, size: int) -> list[int]:
    """Add to the seed, one by one, the position that is nearest to all chosen so far."""
    chosen, away = [seed], list(matrix[seed])
    left = [i for i in range(len(matrix)) if i != seed]
    while len(chosen) < size:
        nearest = min(left, key=away.__getitem__)
        left.remove(nearest)
        chosen.append(nearest)
        away = [total + step for total, step in zip(away, matrix[nearest], strict=True)]
    return chosen


def _mixture(subset: Sequence[int], kinds: Sequence[Kind]) -> tuple[int, int]:
    """Rank a set by its number of models and its least memory, the best lowest."""
    return len({kinds[i][0] for i in subset}), -min(kinds[i][1] for i in subset)


def _equal_gpus(machine: Machine) -> list[tuple[str, ...]]:
    kinds: dict[tuple[str | None, int | None], list[str]] = {}
    for gpu in machine.gpus:
        kinds.setdefault((gpu.name, gpu.memory), []).append(gpu.id)
    return [tuple(ids) for ids in kinds.values()]


def _distinct_islands(machine: Machine) -> list[tuple[str, ...]]:
    """Keep the first of the islands that look the same."""
    return [first for first, _ in folded(islands(machine), lambda island: shape_of(machine, island))]
