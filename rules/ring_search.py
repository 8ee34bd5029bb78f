"""Search for the cheapest ring over a symmetric matrix of costs: a guess, a proof that it is best, else every path.

Machines are built in levels, so a guess along these levels is nearly always the best ring, and counting the islands at
each level proves it. What is left, such as a mesh with gaps, is searched by dynamic programming over the sets of GPUs
visited (Held and Karp 1962), without paths that cost more than the guess, and with GPUs that look the same ("twins")
taken in one order only.
"""

from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, pairwise
from math import inf

EXACT = 16  # GPUs; above, the guess is taken

Matrix = Sequence[Sequence[int]]
Layer = dict[int, dict[int, int]]  # positions visited, as bits -> the last of them -> cost of the cheapest such path


def cheapest_ring(matrix: Matrix, exact: int = EXACT) -> list[int]:
    """Return the positions on the cheapest ring, from 0 on: the best up to `exact`, and above where it can be proven.

    Milliseconds for regular machines, up to 1 s for 16 GPUs without any order, so the last answers are kept.
    """
    return list(_cheapest_ring(tuple(map(tuple, matrix)), exact))


@lru_cache(maxsize=32)
def _cheapest_ring(matrix: Matrix, exact: int) -> Sequence[int]:
    order = quick_ring(matrix)
    guess = ring_cost(order, matrix)
    if len(matrix) > exact or guess <= least_cost(matrix, len(matrix)):
        return order
    return _cheaper_ring(matrix, guess) or order


def quick_ring(matrix: Matrix) -> list[int]:
    """Join GPUs, then islands, the nearest first, and reverse stretches as long as that makes the ring cheaper."""
    order = _improved(_joined(matrix), matrix)
    start = order.index(0)
    return order[start:] + order[:start]


def ring_cost(order: Sequence[int], matrix: Matrix) -> int:
    """Sum the costs of the hops of a ring: one hop for two positions, none for one."""
    if len(order) <= 2:
        return matrix[order[0]][order[-1]]
    return sum(matrix[order[i - 1]][order[i]] for i in range(len(order)))


def least_cost(matrix: Matrix, size: int) -> int:
    """Return what no ring over `size` of the positions can undercut.

    With links up to some cost the GPUs fall into islands. A ring that must visit m > 1 of them takes m hops of a higher
    cost: two pairs in a box of four take 2 slow hops.
    """
    if size < 2:
        return 0
    hops = size if size > 2 else 1
    grades = sorted({matrix[a][b] for a, b in combinations(range(len(matrix)), 2)})
    total = hops * grades[0]
    home = [{position} for position in range(len(matrix))]
    for below, above in pairwise(grades):
        for a, b in combinations(range(len(matrix)), 2):
            if matrix[a][b] == below and home[a] is not home[b]:
                home[a] |= home[b]
                for member in home[b]:
                    home[member] = home[a]
        islands = sorted({id(island): len(island) for island in home}.values(), reverse=True)
        visited = next(m for m in range(1, len(islands) + 1) if sum(islands[:m]) >= size)
        crossings = 0 if visited == 1 else min(visited, hops)
        total += crossings * (above - below)
    return total


def twins_before(matrix: Matrix, kinds: Sequence[Hashable] = ()) -> list[int]:
    """Return for each position those before it, as bits, that could change places with it.

    Twins have the same costs to all others and, where given, the same kind.
    """
    before = [0] * len(matrix)
    heads: list[int] = []
    for i in range(len(matrix)):
        head = next((h for h in heads if (not kinds or kinds[h] == kinds[i]) and _are_twins(matrix, h, i)), None)
        if head is None:
            heads.append(i)
        else:
            before[i] = before[head] | 1 << head | sum(1 << j for j in range(head, i) if before[j] & 1 << head)
    return before


def path_layers(matrix: Matrix, first: int, before: Sequence[int], limit: float = inf) -> Iterator[Layer]:
    """Yield the cheapest paths from `first` over later positions: those of one position, of two, and so on.

    Twins (`before`, see `twins_before`) are visited in order. Paths that cost `limit` or more are left out.
    """
    layer: Layer = {1 << first: {first: 0}}
    later = [(i, 1 << i, before[i], matrix[i]) for i in range(first + 1, len(matrix))]
    while layer:
        yield layer
        longer: Layer = {}
        for visited, ends in layer.items():
            for i, bit, twins, row in later:
                if visited & bit or visited & twins != twins:
                    continue
                cost = min([cost + row[last] for last, cost in ends.items()])
                if cost < limit:
                    longer.setdefault(visited | bit, {})[i] = cost
        layer = longer


def _joined(matrix: Matrix) -> list[int]:
    """Put pairs together from the nearest on, each time the whole stretches that the two belong to."""
    stretch = [[position] for position in range(len(matrix))]
    for a, b in sorted(combinations(range(len(matrix)), 2), key=lambda pair: matrix[pair[0]][pair[1]]):
        one, two = stretch[a], stretch[b]
        if one is two:
            continue
        turned = [(left, right) for left in (one, one[::-1]) for right in (two, two[::-1])]
        left, right = min(turned, key=lambda pair: matrix[pair[0][-1]][pair[1][0]])
        both = left + right
        for member in both:
            stretch[member] = both
    return stretch[0]


def _improved(order: list[int], matrix: Matrix) -> list[int]:
    """Reverse stretches (2-opt) until no reversal makes the ring cheaper."""
    size, better = len(order), True
    while better:
        better = False
        for i, j in combinations(range(size), 2):
            a, b, c, d = order[i - 1], order[i], order[j], order[(j + 1) % size]
            if a != c and matrix[a][c] + matrix[b][d] < matrix[a][b] + matrix[c][d]:
                order[i : j + 1] = reversed(order[i : j + 1])
                better = True
    return order


def _cheaper_ring(matrix: Matrix, guess: int) -> list[int] | None:
    """Find the cheapest ring of those below `guess`; None if there is none.

    A ring visits each GPU by two hops. So with twice the cost of each hop, less the cheapest hop of both its ends,
    rings compare as before, no hop is negative, and a path that reaches the limit can be dropped.
    """
    size = len(matrix)
    least = [min(row[:i] + row[i + 1 :]) for i, row in enumerate(map(list, matrix))]
    spare = [[2 * matrix[a][b] - least[a] - least[b] for b in range(size)] for a in range(size)]
    limit = 2 * (guess - sum(least))
    before = twins_before(spare)
    layers = list(path_layers(spare, 0, before, limit))
    if len(layers) < size:
        return None
    visited, ends = next(iter(layers[-1].items()))
    cost, last = min((cost + spare[last][0], last) for last, cost in ends.items())
    if cost >= limit:
        return None
    order = [last]
    cost = ends[last]
    for layer in reversed(layers[:-1]):
        visited ^= 1 << last
        cost, last = next((c, end) for end, c in layer[visited].items() if c + spare[end][last] == cost)
        order.append(last)
    return order[::-1]


def _are_twins(matrix: Matrix, a: int, b: int) -> bool:
    return all(matrix[a][x] == matrix[b][x] for x in range(len(matrix)) if x not in (a, b))
