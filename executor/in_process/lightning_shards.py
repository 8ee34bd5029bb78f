"""What Lightning does to a model beside wrapping it, where a plan has sharded the model."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from advisor.executor.in_process import sharded, whole


def acts(plan: dict[str, Any]) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Name the modules of Lightning that are steered, and how: all before others import functions from them."""
    if plan["strategy"] in ("fsdp", "hsdp"):
        for package in ("lightning.pytorch", "pytorch_lightning"):
            yield f"{package}.overrides.distributed", spare_shards
            yield f"{package}.callbacks.stochastic_weight_avg", average_without_gradients
    if plan.get("cpu_offload"):
        for package in ("lightning.fabric", "lightning_fabric"):
            yield f"{package}.utilities.optimizer", leave_offloaded


def spare_shards(distributed: Any) -> None:
    """Leave out what is DDP's: its reducer, which manual optimization prepares, and sending rank 0's weights to all.

    The latter Lightning does before it tests a model. Of a sharded model each rank holds other weights.
    """
    prepare, synchronize = distributed.prepare_for_backward, distributed._sync_module_states

    @functools.wraps(prepare)
    def prepare_for_backward(model: Any, output: Any) -> None:
        if not sharded.is_sharded(model.module):
            prepare(model, output)

    @functools.wraps(synchronize)
    def sync_module_states(module: Any) -> None:
        if not sharded.is_sharded(module):
            synchronize(module)

    distributed.prepare_for_backward, distributed._sync_module_states = prepare_for_backward, sync_module_states


def average_without_gradients(callback: Any) -> None:
    """Let averaged weights, which are whole, be copied into the sharded model: with gradients on, torch refuses."""
    import torch

    kind = callback.StochasticWeightAveraging
    kind.transfer_weights = staticmethod(torch.no_grad()(kind.transfer_weights))


def leave_offloaded(optimizer: Any) -> None:
    """Leave the state of an optimizer beside its weights in host memory: Lightning would take it to the GPU."""
    move = optimizer._optimizer_to_device

    @functools.wraps(move)
    def optimizer_to_device(one: Any, device: Any) -> None:
        parameters = [parameter for group in one.param_groups for parameter in group["params"]]
        offloaded = any(whole.is_sharded(parameter) and parameter.device.type == "cpu" for parameter in parameters)
        move(one, "cpu" if offloaded else device)

    optimizer._optimizer_to_device = optimizer_to_device
