import pytest

from advisor.rules.hardware import gpu_model, gpu_names, inter_socket_bandwidth, pcie_bandwidth

MIB = 1024**2


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("Tesla V100-SXM2-16GB", "v100-sxm-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm-32gb"),
        ("Tesla V100-PCIE-16GB", "v100-pcie-16gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4080 SUPER", "rtx-4080-super"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Tesla T4", "t4"),
    ],
)
def test_the_driver_s_name_finds_the_part(name: str, key: str) -> None:
    model = gpu_model(name)
    assert model is not None
    assert model.key == key


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("a10g", "a10g"),
        ("A10G 24GB", "a10g"),
        ("h100", "h100-sxm"),
        ("4090", "rtx-4090"),
        ("rtx3090", "rtx-3090"),
        ("3090 24gb", "rtx-3090"),
        ("a100-40", "a100-sxm-40gb"),
        ("a100 80gb pcie", "a100-pcie-80gb"),
        ("v100-32gb", "v100-sxm-32gb"),
        ("h200 141gb", "h200-sxm"),
    ],
)
def test_a_short_name_finds_the_part(name: str, key: str) -> None:
    model = gpu_model(name)
    assert model is not None
    assert model.key == key


@pytest.mark.parametrize(("name", "mib"), [("a100", 40960), ("v100", 16384)])
def test_a_name_that_leaves_the_memory_open_means_the_smaller_part(name: str, mib: int) -> None:
    model = gpu_model(name)
    assert model is not None
    assert model.memory == mib * MIB


@pytest.mark.parametrize(
    "name",
    [
        "",
        "rtx",
        "40",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "4080 Ti",
        "3080 12GB",
        "RTX 6000",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "a100 64gb",
        "GRID A100X-8C",
    ],
)
def test_a_part_that_is_not_in_the_table_is_not_taken_for_a_similar_one(name: str) -> None:
    assert gpu_model(name) is None


def test_every_listed_name_finds_its_own_entry() -> None:
    for key in gpu_names():
        model = gpu_model(key)
        assert model is not None
        assert model.key == key
        by_driver_name = gpu_model(model.name)
        assert by_driver_name is not None
        assert by_driver_name.key == key


def test_every_entry_has_plausible_numbers_and_a_source() -> None:
    for key in gpu_names():
        model = gpu_model(key)
        assert model is not None
        assert 5e9 < model.memory < 400e9, key
        assert 100e9 < model.memory_bandwidth < 10e12, key
        assert 3e12 < model.flops_fp32 < 200e12, key
        assert model.flops_bf16 is None or model.flops_bf16 >= model.flops_fp32, key
        assert (model.nvlink_links > 0) <= (model.link_rate is not None), key
        assert len(model.source) > 10, key


def test_parts_older_than_ampere_have_no_bf16() -> None:
    for key in gpu_names():
        model = gpu_model(key)
        assert model is not None
        if model.compute_capability is not None:
            assert (model.flops_bf16 is None) == (float(model.compute_capability) < 8), key


def test_memory_is_what_the_driver_reports_not_what_the_label_says() -> None:
    h200, a10g = gpu_model("NVIDIA H200"), gpu_model("NVIDIA A10G")
    assert h200 is not None
    assert a10g is not None
    assert h200.memory == 150754820096
    assert a10g.memory == 23028 * MIB


def test_pcie_bandwidth_counts_lanes_after_line_coding() -> None:
    assert pcie_bandwidth(3, 16) == pytest.approx(15.75e9, rel=0.01)
    assert pcie_bandwidth(5, 8) == pytest.approx(31.5e9, rel=0.01)
    assert pcie_bandwidth(9, 16) is None


@pytest.mark.parametrize(
    ("cpu", "gigabytes"),
    [
        ("Intel(R) Xeon(R) Platinum 8480+", 22),
        ("INTEL(R) XEON(R) PLATINUM 8568Y+", 40),
        ("Intel(R) Xeon(R) Gold 6226R CPU @ 2.90GHz", 10),
        ("Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz", 10),
        ("Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz", 6),
        ("AMD EPYC 7763 64-Core Processor", 16),
    ],
)
def test_the_link_between_sockets_follows_the_cpu(cpu: str, gigabytes: float) -> None:
    assert inter_socket_bandwidth(cpu) == gigabytes * 1e9


@pytest.mark.parametrize("cpu", [None, "", "Intel(R) Xeon(R) Processor @ 2.00GHz"])
def test_a_cpu_that_hides_its_model_has_no_known_link_between_sockets(cpu: str | None) -> None:
    assert inter_socket_bandwidth(cpu) is None
