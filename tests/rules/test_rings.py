import random
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.rules.ring_search import cheapest_ring, least_cost, quick_ring, ring_cost, twins_before
from advisor.rules.rings import cost_matrix, hops, ring_order, steep_cost

Matrix = list[list[int]]
seeds = st.integers(0, 10**6)


def drawn(size: int, grades: int, seed: int) -> Matrix:
    """Draw costs as steep as those of links: a ring of better hops is cheaper than one worse hop."""
    choose = random.Random(seed)
    matrix = [[0] * size for _ in range(size)]
    for a, b in combinations(range(size), 2):
        matrix[a][b] = matrix[b][a] = (size + 1) ** choose.randrange(grades)
    return matrix


def boxes(*sizes: int) -> Matrix:
    """Nest 16 GPUs in boxes of these sizes, the smallest first: the further the dearer."""
    levels = [
        next((i for i, size in enumerate(sizes) if a // size == b // size), 9) for a in range(16) for b in range(16)
    ]
    return [[17**level for level in levels[16 * a : 16 * a + 16]] for a in range(16)]


def held_karp(matrix: Matrix) -> int:
    """Cost of the cheapest ring by the plain algorithm."""
    size = len(matrix)
    best = {(1 << i, i): matrix[0][i] for i in range(1, size)}
    for _ in range(size - 2):
        longer: dict[tuple[int, int], int] = {}
        for (visited, last), cost in best.items():
            for i in range(1, size):
                if not visited >> i & 1:
                    key = visited | 1 << i, i
                    longer[key] = min(longer.get(key, cost + matrix[last][i]), cost + matrix[last][i])
        best = longer
    return min(cost + matrix[last][0] for (_, last), cost in best.items())


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 7), st.integers(1, 6), seeds)
def test_no_order_of_few_gpus_is_cheaper_than_the_ring_found(size: int, grades: int, seed: int) -> None:
    matrix = drawn(size, grades, seed)
    order = cheapest_ring(matrix)
    assert sorted(order) == list(range(size))
    every = (ring_cost([0, *rest], matrix) for rest in permutations(range(1, size)))
    assert ring_cost(order, matrix) == min(every)


@settings(max_examples=20, deadline=None)
@given(st.integers(8, 11), st.integers(2, 6), seeds)
def test_the_ring_is_as_cheap_as_that_of_the_plain_dynamic_programme(size: int, grades: int, seed: int) -> None:
    matrix = drawn(size, grades, seed)
    assert ring_cost(cheapest_ring(matrix), matrix) == held_karp(matrix)


@settings(max_examples=20, deadline=None)
@given(st.integers(9, 16), st.integers(1, 5), seeds)
def test_a_long_ring_visits_every_gpu_once_from_the_first_on_and_is_never_worse_than_the_guess(
    size: int, grades: int, seed: int
) -> None:
    matrix = drawn(size, grades, seed)
    order = cheapest_ring(matrix)
    assert order[0] == 0
    assert sorted(order) == list(range(size))
    assert least_cost(matrix, size) <= ring_cost(order, matrix) <= ring_cost(quick_ring(matrix), matrix)


@pytest.mark.parametrize("sizes", [(16,), (8,), (2, 8), (4, 8), (2, 4, 8), (3, 6), (5,)])
def test_the_guess_is_proven_for_machines_built_in_levels(sizes: tuple[int, ...]) -> None:
    matrix = boxes(*sizes)
    assert ring_cost(quick_ring(matrix), matrix) == least_cost(matrix, 16)


def test_the_order_of_72_gpus_keeps_to_their_groups() -> None:
    names = [f"GPU{7 * i % 72}" for i in range(72)]
    group = {name: int(name.removeprefix("GPU")) // 8 for name in names}
    order = ring_order(names, lambda a, b: 1 if group[a] == group[b] else 100)
    assert sum(group[a] != group[b] for a, b in hops(order)) == 9


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 7), st.integers(2, 4), seeds, st.integers(2, 7))
def test_no_ring_over_some_of_the_gpus_undercuts_the_bound(size: int, grades: int, seed: int, some: int) -> None:
    matrix = drawn(size, grades, seed)
    some = min(some, size)
    subsets = (order for chosen in combinations(range(size), some) for order in permutations(chosen))
    assert least_cost(matrix, some) <= min(ring_cost(order, matrix) for order in subsets)


def test_gpus_that_can_change_places_are_twins_unless_they_are_of_different_kinds() -> None:
    pairs = boxes(2)
    assert [bits.bit_count() for bits in twins_before(pairs)] == [0, 1] * 8
    assert [bits.bit_count() for bits in twins_before(boxes(16))] == list(range(16))
    assert not any(twins_before(pairs, kinds=range(16)))


def test_twins_change_no_cost_when_they_change_places() -> None:
    matrix = drawn(8, 2, seed=3)
    for row in (matrix, list(map(list, zip(*matrix, strict=True)))):
        row[5] = row[2][:]
    matrix = [[matrix[min(a, b)][max(a, b)] for b in range(8)] for a in range(8)]
    before = twins_before(matrix)
    for later, bits in enumerate(before):
        for earlier in (i for i in range(later) if bits >> i & 1):
            order = list(range(8))
            order[earlier], order[later] = later, earlier
            assert ring_cost(order, matrix) == ring_cost(range(8), matrix)


@pytest.mark.parametrize(("count", "number"), [(0, 0), (1, 0), (2, 1), (3, 3), (8, 8)])
def test_a_ring_has_as_many_hops_as_gpus_except_that_two_share_one(count: int, number: int) -> None:
    assert len(list(hops([f"GPU{i}" for i in range(count)]))) == number


def test_a_worse_hop_costs_more_than_a_ring_of_better_ones_and_a_lost_one_more_still() -> None:
    pairs = list(map(frozenset, combinations("abcdefgh", 2)))
    cost = steep_cost({pair: number % 3 for number, pair in enumerate(pairs)})
    steps = sorted({cost(*pair) for pair in pairs})
    assert all(worse > 8 * better for better, worse in pairwise(steps))
    assert cost("a", "nobody") > 8 * steps[-1]


def test_the_matrix_of_costs_is_symmetric() -> None:
    matrix = cost_matrix("abc", lambda a, b: ord(a) + ord(b))
    assert matrix == [list(column) for column in zip(*matrix, strict=True)]
    assert matrix[0][2] == ord("a") + ord("c")
