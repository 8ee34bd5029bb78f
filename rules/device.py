"""What one device computes and moves: the constants behind the step-time model, each with where it comes from."""

from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.hardware import GpuModel, gpu_model
from advisor.rules.machine import Gpu, Machine, Source, Value

# Share of the dense peak that large matrix products reach in training, by major compute capability. Hopper: measured
# on H200 (a lone product of 4096^3 reaches 0.79, the products of whole steps 0.62). Others: chosen so that whole steps
# come to the published MFU (A100 0.50-0.60, llm-foundry scripts/train/benchmarking; V100 and Ada from
# github.com/qhduan/transformers-benchmarks); Blackwell assumed.
MATMUL_EFFICIENCY = {6: 0.55, 7: 0.45, 8: 0.68, 9: 0.62, 10: 0.55, 12: 0.6}
SMALL_MATMUL = 0.8  # the same below a hidden size of 1024
MEMORY_EFFICIENCY = 0.8  # of the data-sheet bandwidth; a copy on H200 moved 4.3 of 4.8e12 B/s, fused kernels less
BLOCK_HOST_SECONDS = 2.5e-3  # Python and launches of one block, forward and backward, eager; measured 2.6-3.1
FSDP_BLOCK_HOST_SECONDS = 3.0e-3  # what FSDP2 adds to it; measured, 24-block models at small batches
ASSUMED_FLOPS = 100e12  # a GPU of which nothing but its memory is known: between A10G (70) and A100 (312)
ASSUMED_MEMORY_BANDWIDTH = 800e9
CPU_CORE_FLOPS = 30e9  # fp32 with AVX2, as PyTorch's matrix products reach on cloud cores; assumed
CPU_MEMORY_BANDWIDTH = 10e9  # per rank; assumed


class Device(Value, frozen=True, kw_only=True):
    flops: float  # per second, achieved by large matrix products in the plan's precision
    memory_bandwidth: float  # bytes per second, achieved
    source: Source
    uncertainty: float  # relative: a prediction spans 1 - u to 1 + u


def peak_flops(model: GpuModel, precision: str | None) -> float | None:
    """Return the dense peak in FLOP/s. fp32 products run as tf32 only where the script asks for it, so not here."""
    if precision == "fp32":
        return model.flops_fp32
    if precision == "fp16-autocast":
        return model.flops_fp16
    return model.flops_bf16


def supports_bf16(gpu: Gpu) -> bool:
    """Say whether bf16 runs natively: compute capability 8.0 and later. Unknown GPUs are taken to be recent."""
    return gpu.compute_capability is None or int(gpu.compute_capability.split(".")[0]) >= 8


def device_of(machine: Machine, gpu_id: str, precision: str | None, hidden: int) -> Device:
    """Return what a GPU (or the CPU process that stands in for one) achieves, from its data sheet or assumed."""
    gpu = machine.gpu(gpu_id)
    small = SMALL_MATMUL if hidden < 1024 else 1.0
    if is_cpu(gpu):
        cores = (machine.host.cpus or machine.host.cores or 1) / len(machine.gpus)
        return Device(
            flops=CPU_CORE_FLOPS * cores, memory_bandwidth=CPU_MEMORY_BANDWIDTH, source="assumed", uncertainty=0.75
        )
    model = gpu_model(gpu.name) if gpu.name else None
    peak = peak_flops(model, precision) if model else None
    if model is None or peak is None:
        return Device(
            flops=ASSUMED_FLOPS * MATMUL_EFFICIENCY[8] * small,
            memory_bandwidth=ASSUMED_MEMORY_BANDWIDTH * MEMORY_EFFICIENCY,
            source="assumed",
            uncertainty=0.75,
        )
    generation = int(model.compute_capability.split(".")[0]) if model.compute_capability else 8
    return Device(
        flops=peak * MATMUL_EFFICIENCY.get(generation, MATMUL_EFFICIENCY[8]) * small,
        memory_bandwidth=model.memory_bandwidth * MEMORY_EFFICIENCY,
        source="data sheet",
        uncertainty=0.3,
    )
