"""Several sources of one machine: gaps are filled, a GPU is found again, differences are kept as contradictions."""

from hypothesis import given
from hypothesis import strategies as st

from advisor.probe.merge import merge
from advisor.rules.machine import Gpu, Host, Link, Machine, Nic, PeerAccess, Software


def link(a: str, b: str, code: str) -> Link:
    return Link(a=a, b=b, code=code, kind="nvlink" if code.startswith("NV") else "host-bridge")


def test_a_later_source_fills_what_the_first_leaves_open() -> None:
    matrix = Machine(gpus=(Gpu(id="GPU0", index=0, numa=1),), software=Software(driver="580.1"), source="topo.txt")
    query = Machine(gpus=(Gpu(id="GPU0", index=0, name="NVIDIA H200", memory=10),), host=Host(cpus=8), source="q.txt")
    merged = merge([matrix, query])
    assert merged.gpus == (Gpu(id="GPU0", index=0, numa=1, name="NVIDIA H200", memory=10),)
    assert merged.software.driver == "580.1"
    assert merged.host.cpus == 8
    assert merged.source == "topo.txt, q.txt"
    assert merged.contradictions == ()


def test_two_sources_that_differ_are_a_contradiction_and_the_first_is_taken() -> None:
    one = Machine(gpus=(Gpu(id="GPU0", index=0, memory=80 * 10**9),), source="a")
    two = Machine(gpus=(Gpu(id="GPU0", index=0, memory=40 * 10**9),), source="b")
    merged = merge([one, two])
    assert merged.gpus[0].memory == 80 * 10**9
    (found,) = merged.contradictions
    assert (found.what, found.sources, found.values) == ("GPU0.memory", ("a", "b"), ("80000000000", "40000000000"))


def test_what_changes_from_one_look_to_the_next_is_no_contradiction() -> None:
    one, two = (Machine(gpus=(Gpu(id="GPU0", index=0, memory=10**11, memory_used=used),)) for used in (5, 9))
    assert merge([one, two]).contradictions == ()


def test_a_gpu_that_cuda_counts_otherwise_is_found_by_its_pci_address() -> None:
    smi = Machine(gpus=tuple(Gpu(id=f"GPU{i}", index=i, bus_id=f"0000:0{i}:00.0") for i in range(3)))
    nccl = Machine(
        gpus=(Gpu(id="GPU0", index=0, bus_id="0000:02:00.0", compute_capability="9.0"),),
        peer_access=(PeerAccess(a="GPU0", b="GPU1", capability="read", status="OK"),),
    )
    merged = merge([smi, nccl])
    assert [gpu.compute_capability for gpu in merged.gpus] == [None, None, "9.0"]
    assert merged.peer_access[0].a == "GPU2"
    assert merged.contradictions == ()


def test_a_gpu_that_only_the_second_source_has_gets_an_id_of_its_own() -> None:
    one = Machine(gpus=(Gpu(id="GPU0", index=0, bus_id="0000:01:00.0"),))
    two = Machine(gpus=(Gpu(id="GPU0", index=0, bus_id="0000:02:00.0"),))
    assert [gpu.id for gpu in merge([one, two]).gpus] == ["GPU0", "GPU1"]


def test_uuids_that_were_made_anonymous_name_no_gpu() -> None:
    gpus = tuple(Gpu(id=f"GPU{i}", index=i, uuid="GPU-0000") for i in range(2))
    named = tuple(Gpu(id=f"GPU{i}", index=i, uuid="GPU-0000", name=f"card {i}") for i in range(2))
    merged = merge([Machine(gpus=gpus), Machine(gpus=named)])
    assert [gpu.name for gpu in merged.gpus] == ["card 0", "card 1"]
    other = tuple(Gpu(id=f"GPU{i}", index=i, uuid="GPU-1111", memory=10 + i) for i in range(2))
    assert [gpu.memory for gpu in merge([Machine(gpus=gpus), Machine(gpus=other)]).gpus] == [10, 11]


def test_nvlink_stands_before_the_pcie_path_that_topo_mp_prints_of_the_same_pair() -> None:
    with_nvlink = Machine(links=(link("GPU0", "GPU1", "NV4"),))
    without = Machine(links=(link("GPU0", "GPU1", "PHB"),))
    for order in ([with_nvlink, without], [without, with_nvlink]):
        merged = merge(order)
        assert [found.code for found in merged.links] == ["NV4"]
        assert merged.contradictions == ()
    other = Machine(links=(link("GPU1", "GPU0", "NV2"),))
    assert merge([with_nvlink, other]).contradictions[0].values == ("NV4", "NV2")


def test_network_cards_are_the_same_by_the_name_of_their_device() -> None:
    one = Machine(nics=(Nic(id="NIC0", name="mlx5_3"),), links=(link("GPU0", "NIC0", "PHB"),))
    two = Machine(nics=(Nic(id="mlx5_3", name="mlx5_3", kind="roce"),), links=(link("GPU0", "mlx5_3", "PHB"),))
    merged = merge([one, two])
    assert merged.nics == (Nic(id="NIC0", name="mlx5_3", kind="roce"),)
    assert len(merged.links) == 1


GPUS = st.builds(
    Gpu,
    id=st.just("GPU0"),
    index=st.just(0),
    name=st.sampled_from([None, "NVIDIA H100", "NVIDIA A100"]),
    memory=st.sampled_from([None, 4 * 10**10, 8 * 10**10]),
    numa=st.sampled_from([None, 0, 1, (0, 1)]),
    bus_id=st.sampled_from([None, "0000:01:00.0", "0000:02:00.0"]),
)


@given(GPUS)
def test_a_machine_merged_with_itself_is_itself(gpu: Gpu) -> None:
    machine = Machine(gpus=(gpu,))
    assert merge([machine, machine]) == machine


@given(GPUS, GPUS)
def test_no_fact_of_the_first_source_is_lost_or_changed(one: Gpu, two: Gpu) -> None:
    merged = merge([Machine(gpus=(one,)), Machine(gpus=(two,))]).gpus[0]
    for field in ("name", "memory", "numa", "bus_id"):
        assert getattr(one, field) in (None, getattr(merged, field))
