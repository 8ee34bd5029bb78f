"""What one device computes and moves: the constants behind the step-time model, each with where it comes from."""

import math

from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.hardware import GpuModel, gpu_model
from advisor.rules.machine import Gpu, Machine, Source, Value

# Share of the dense peak that the matrix products of training reach, by major compute capability. Hopper: the kernels
# of one step of a 125M GPT and ViT-L on H200 (0.74 of 989e12; 1.4B: 0.81). Others: chosen so that whole steps come to
# the published MFU (A100 0.50-0.60, llm-foundry scripts/train/benchmarking; V100 and Ada from
# github.com/qhduan/transformers-benchmarks); Blackwell assumed.
MATMUL_EFFICIENCY = {6: 0.55, 7: 0.5, 8: 0.75, 9: 0.77, 10: 0.6, 12: 0.7}
ATTENTION_EFFICIENCY = 0.3  # fused attention, forward and backward; measured on the same two, 0.16-0.45 by length
CONVOLUTION_EFFICIENCY = 0.34  # bf16 in PyTorch's default layout; measured on ResNet-50, H200
# Bytes per second that element-wise kernels, norms and copies reach: a share of the data-sheet bandwidth, and no more
# than the multiprocessors of a generation issue. Hopper's limit is measured on the same two models; Blackwell's is
# assumed.
ELEMENTWISE_EFFICIENCY = 0.7
ELEMENTWISE_LIMIT = {9: 2.4e12, 10: 3.6e12}
BATCH_NORM_EFFICIENCY = 0.2  # of what element-wise kernels reach: PyTorch's own kernels in NCHW, ResNet-50 on H200
STREAMING_EFFICIENCY = 0.73  # of the data-sheet bandwidth, fused AdamW over all parameters: 3.5 of 4.8e12 on H200
KERNEL_SECONDS = 2e-6  # to start and drain one kernel
LAUNCH_SECONDS = 35e-6  # of the host for one kernel in eager mode, modules and autograd included; measured 23-40e-6
# Seconds of the host, measured on the same two: for a block that FSDP2 gathers and reduces, for gathering it again in
# the backward pass, and for the hook of one parameter tensor under DDP.
FSDP_BLOCK_SECONDS = 3.2e-3
FSDP_REGATHER_SECONDS = 0.6e-3
DDP_TENSOR_SECONDS = 40e-6
# Relative; nine of ten predictions from data sheets should lie inside. Hopper: measured rows lie within 0.13 (docs/
# accuracy.md); other generations rest on published figures.
UNCERTAINTY = {9: 0.2}
OTHER_UNCERTAINTY = 0.35
ASSUMED_FLOPS = 100e12  # a GPU of which nothing but its memory is known: between A10G (70) and A100 (312)
ASSUMED_MEMORY_BANDWIDTH = 800e9
CPU_CORE_FLOPS = 30e9  # fp32 with AVX2, as PyTorch's matrix products reach on cloud cores; assumed
CPU_MEMORY_BANDWIDTH = 10e9  # per rank; assumed


class Device(Value, frozen=True, kw_only=True):
    """What one device achieves in training: FLOP and bytes per second by kind of kernel, seconds of overhead."""

    matmul: float
    attention: float
    convolution: float
    elementwise: float  # bytes per second
    batch_norm: float  # bytes per second
    streaming: float  # bytes per second of long, regular kernels such as the optimizer's
    kernel_seconds: float = 0.0
    launch_seconds: float = 0.0  # of the host
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


def device_of(machine: Machine, gpu_id: str, precision: str | None) -> Device:
    """Return what a GPU (or the CPU process that stands in for one) achieves, from its data sheet or assumed."""
    gpu = machine.gpu(gpu_id)
    if is_cpu(gpu):
        cores = (machine.host.cpus or machine.host.cores or 1) / len(machine.gpus)
        flops = CPU_CORE_FLOPS * cores
        return Device(
            matmul=flops,
            attention=flops,
            convolution=flops,
            elementwise=CPU_MEMORY_BANDWIDTH,
            batch_norm=CPU_MEMORY_BANDWIDTH,
            streaming=CPU_MEMORY_BANDWIDTH,
            source="assumed",
            uncertainty=0.75,
        )
    model = gpu_model(gpu.name) if gpu.name else None
    peak = peak_flops(model, precision) if model else None
    if model is None or peak is None:
        return _gpu(ASSUMED_FLOPS, ASSUMED_MEMORY_BANDWIDTH, 8, "assumed", 0.75)
    generation = int(model.compute_capability.split(".")[0]) if model.compute_capability else 8
    uncertainty = UNCERTAINTY.get(generation, OTHER_UNCERTAINTY)
    return _gpu(peak, model.memory_bandwidth, generation, "data sheet", uncertainty)


def _gpu(peak: float, bandwidth: float, generation: int, source: Source, uncertainty: float) -> Device:
    elementwise = min(ELEMENTWISE_EFFICIENCY * bandwidth, ELEMENTWISE_LIMIT.get(generation, math.inf))
    return Device(
        matmul=MATMUL_EFFICIENCY.get(generation, MATMUL_EFFICIENCY[8]) * peak,
        attention=ATTENTION_EFFICIENCY * peak,
        convolution=CONVOLUTION_EFFICIENCY * peak,
        elementwise=elementwise,
        batch_norm=BATCH_NORM_EFFICIENCY * elementwise,
        streaming=STREAMING_EFFICIENCY * bandwidth,
        kernel_seconds=KERNEL_SECONDS,
        launch_seconds=LAUNCH_SECONDS,
        source=source,
        uncertainty=uncertainty,
    )
