from collections.abc import Callable

import pytest
from msgspec.structs import replace

from advisor.rules.asymmetry import asymmetries
from advisor.rules.links import kind_of_code
from advisor.rules.machine import Gpu, Link, Machine, Pcie

Build = Callable[..., Machine]


def said(machine: Machine) -> list[str]:
    return [uneven.message for uneven in asymmetries(machine)]


@pytest.mark.parametrize(
    ("gpus", "name", "code"),
    [
        (8, "h100", "NV18"),
        (8, "4090", "SYS"),
        (4, "a100 80gb pcie", lambda a, b: "NV12" if a // 2 == b // 2 else "SYS"),
        (8, "v100", lambda a, b: "NV1" if (a ^ b).bit_count() == 1 else "SYS"),
        (1, "a10g", "PHB"),
        (0, "a10g", "PHB"),
    ],
)
def test_boxes_of_equal_gpus_and_links_are_even(machine: Build, gpus: int, name: str, code: object) -> None:
    assert asymmetries(machine(gpus, name, code)) == ()


def test_three_gpus_with_one_bridge(machine: Build) -> None:
    box = machine(3, "a6000", lambda a, b: "NV4" if (a, b) == (0, 1) else "PHB")
    assert said(box) == ["GPU0-1 are joined by NVLink, GPU2 is not"]
    assert asymmetries(box)[0].groups == (("GPU0", "GPU1"), ("GPU2",))


def test_four_gpus_on_one_socket_and_two_on_the_other(machine: Build) -> None:
    box = machine(6, "a10g", lambda a, b: "PIX" if a // 2 == b // 2 else "NODE" if b < 4 else "SYS")
    assert said(box) == ["4 + 2 GPUs share a NUMA node: GPU0-3, GPU4-5"]
    assert asymmetries(box)[0].values == (4, 2)


def test_two_bridged_pairs_and_two_lone_gpus(machine: Build) -> None:
    box = machine(6, "3090", lambda a, b: "NV4" if (a, b) in ((0, 1), (2, 3)) else "PHB")
    assert said(box) == ["GPU0-1 and GPU2-3 each are joined by NVLink, GPU4-5 are not"]


def test_gpus_that_share_a_switch_and_one_that_does_not(machine: Build) -> None:
    box = machine(3, "a10g", lambda a, b: "PIX" if (a, b) == (0, 1) else "PHB")
    assert said(box) == ["GPU0-1 share a PCIe switch, GPU2 does not"]


def test_mixed_models_are_told_apart_with_their_memory(machine: Build) -> None:
    box = machine(3, "3090", "PHB")
    mixed = replace(box, gpus=(*box.gpus[:2], replace(box.gpus[2], name="NVIDIA RTX A4000", memory=16 * 2**30)))
    (models,) = asymmetries(mixed)
    assert models.message == "GPU0-1 are NVIDIA GeForce RTX 3090; GPU2 is NVIDIA RTX A4000"
    assert models.values == (24 * 2**30, 16 * 2**30)


def test_one_model_with_unequal_memory_is_told_apart_but_not_by_a_few_megabytes(machine: Build) -> None:
    box = machine(2, "a100", "NV12")
    first, second = box.gpus
    assert said(replace(box, gpus=(first, replace(second, memory=80 * 2**30)))) == [
        "GPU0 has 42.9 GB; GPU1 has 85.9 GB"
    ]
    assert said(replace(box, gpus=(first, replace(second, memory=(first.memory or 0) - 2**20)))) == []


def test_a_narrow_slot_is_told_with_what_it_gives(machine: Build) -> None:
    box = machine(2, "3090", "PHB")
    slots = (Pcie(generation_max=4, width=16), Pcie(generation_max=4, width=8, width_max=16))
    narrow = replace(box, gpus=tuple(replace(gpu, pcie=pcie) for gpu, pcie in zip(box.gpus, slots, strict=True)))
    assert said(narrow) == ["by PCIe slot GPU0 has 31.5 GB/s; GPU1 has 15.8 GB/s"]


def test_gpus_of_which_nothing_is_known_are_not_called_uneven() -> None:
    kind = kind_of_code("SYS")
    assert kind is not None
    bare = Machine(
        gpus=(Gpu(id="GPU0", index=0), Gpu(id="GPU1", index=1)),
        links=(Link(a="GPU0", b="GPU1", code="SYS", kind=kind),),
    )
    assert asymmetries(bare) == ()
