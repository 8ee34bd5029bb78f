import random
from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.rules.machine import Gpu, Link, Machine
from advisor.rules.ring_search import quick_ring, ring_cost
from advisor.rules.rings import cost_matrix, hops, ring_order
from advisor.rules.subsets import best_subsets, gpu_groups, subsets_of
from advisor.rules.topology import hop_cost

Build = Callable[..., Machine]


def two_sockets(a: int, b: int) -> str:
    return "PIX" if a // 2 == b // 2 else "PHB" if a // 4 == b // 4 else "SYS"


def ring(machine: Machine, gpus: tuple[str, ...]) -> int:
    cost = hop_cost(machine)
    return sum(cost(a, b) for a, b in hops(ring_order(gpus, cost)))


def measured(gpus: int, seed: int) -> Machine:
    choose = random.Random(seed)
    ids = [f"GPU{i}" for i in range(gpus)]
    links = (
        Link(a=a, b=b, code="PHB", kind="host-bridge", bandwidth=choose.uniform(1e9, 9e9))
        for a, b in combinations(ids, 2)
    )
    return Machine(gpus=tuple(Gpu(id=name, index=i) for i, name in enumerate(ids)), links=tuple(links))


def test_groups_are_all_gpus_one_of_equal_islands_and_the_best_of_each_size(machine: Build) -> None:
    groups = gpu_groups(machine(8, "a10g", two_sockets))
    assert groups[0] == tuple(f"GPU{i}" for i in range(8))
    assert sorted(map(len, groups)) == [1, 2, 4, 8]
    assert ("GPU0", "GPU1", "GPU2", "GPU3") in groups


def test_the_best_pair_is_the_bridged_one(machine: Build) -> None:
    box = machine(3, "3090", lambda a, b: "NV4" if (a, b) == (1, 2) else "PHB")
    assert ("GPU1", "GPU2") in gpu_groups(box)


def test_unequal_gpus_are_also_offered_apart_and_the_single_one_is_the_largest(machine: Build) -> None:
    box = machine(3, "3090", "PHB")
    groups = gpu_groups(replace(box, gpus=(replace(box.gpus[0], name="3060", memory=12), *box.gpus[1:])))
    assert ("GPU1", "GPU2") in groups
    assert ("GPU1",) in groups
    assert ("GPU0",) in groups


def test_of_equal_rings_the_one_over_one_model_is_better(machine: Build) -> None:
    box = machine(4, "3090", "PHB")
    mixed = replace(box, gpus=tuple(replace(gpu, name=("3060", "3090")[gpu.index % 2]) for gpu in box.gpus))
    assert best_subsets(mixed)[1] in (("GPU0", "GPU2"), ("GPU1", "GPU3"))


def test_a_machine_without_gpus_has_no_groups() -> None:
    assert gpu_groups(Machine()) == ()
    assert subsets_of(Machine()) == ()


@pytest.mark.parametrize("near", ["NV4", "PIX"])
def test_groups_of_sixteen_gpus_keep_to_the_islands(machine: Build, near: str) -> None:
    box = machine(16, "a6000", lambda a, b: near if a // 2 == b // 2 else "NODE" if a // 8 == b // 8 else "SYS")
    eight = next(group for group in gpu_groups(box) if len(group) == 8)
    assert eight in (tuple(f"GPU{i}" for i in range(8)), tuple(f"GPU{i}" for i in range(8, 16)))


def test_each_number_of_gpus_has_its_best_group_with_its_slowest_link(machine: Build) -> None:
    four_plus_two = machine(6, "a10g", lambda a, b: "PIX" if a // 2 == b // 2 else "NODE" if b < 4 else "SYS")
    found = {len(subset.gpus): (subset.gpus, subset.code) for subset in subsets_of(four_plus_two)}
    assert found[2] == (("GPU0", "GPU1"), "PIX")
    assert found[4] == (("GPU0", "GPU1", "GPU2", "GPU3"), "NODE")
    assert [found[count][1] for count in (3, 5, 6)] == ["NODE", "SYS", "SYS"]


def test_a_rack_of_72_has_groups_of_powers_of_two(machine: Build) -> None:
    rack = machine(72, "b200", lambda a, b: "NV18" if a // 8 == b // 8 else "SYS")
    assert [len(group) for group in best_subsets(rack)] == [1, 2, 4, 8, 16, 32, 64, 72]
    assert len({gpu.index // 8 for gpu in rack.gpus if gpu.id in best_subsets(rack)[4]}) == 2


@settings(max_examples=15, deadline=None)
@given(st.integers(3, 6), st.integers(0, 10**6))
def test_no_other_group_of_a_small_machine_has_a_better_ring(gpus: int, seed: int) -> None:
    box = measured(gpus, seed)
    for chosen in best_subsets(box):
        every = combinations([gpu.id for gpu in box.gpus], len(chosen))
        assert ring(box, chosen) == min(ring(box, group) for group in every)


@settings(max_examples=6, deadline=None)
@given(st.sampled_from([9, 11, 13]), st.integers(0, 10**6))
def test_a_group_is_never_worse_than_the_nearest_gpus_of_any_one(gpus: int, seed: int) -> None:
    box = measured(gpus, seed)
    ids = [gpu.id for gpu in box.gpus]
    matrix = cost_matrix(ids, hop_cost(box))
    chosen = {len(group): ring(box, group) for group in best_subsets(box)}
    for first in range(gpus):
        grown = [first]
        while len(grown) < gpus:
            left = [i for i in range(gpus) if i not in grown]
            grown.append(min(left, key=lambda i: sum(matrix[i][j] for j in grown)))
            inner = [[matrix[a][b] for b in sorted(grown)] for a in sorted(grown)]
            assert chosen[len(grown)] <= ring_cost(quick_ring(inner), inner)
