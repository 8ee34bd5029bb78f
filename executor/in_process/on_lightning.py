"""Scripts on Lightning: Trainer and Fabric get what the plan decides, and are asked what they became.

Both wrap the model with torch's DistributedDataParallel, so the plan for the model itself comes in there, as in any
other script. What Lightning does beside that, and a sharded model does not take, is dealt with in `lightning_shards`.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from advisor.executor.in_process import lightning_shards
from advisor.executor.in_process.blocks import recompute
from advisor.executor.in_process.sharded import is_sharded

Call = Callable[..., Any]

PRECISIONS = {"32-true": "fp32", "bf16-mixed": "bf16-autocast", "16-mixed": "fp16-autocast", "bf16-true": "bf16-params"}


def acts(plan: dict[str, Any], note: Call, guard: Call) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Name the modules of Lightning that are steered, and how."""
    steering = Steering(plan, note, guard)
    for package in ("lightning.pytorch", "pytorch_lightning"):
        yield f"{package}.trainer.trainer", steering.steer_trainer
    for package in ("lightning.fabric", "lightning_fabric"):
        yield f"{package}.fabric", steering.steer_fabric
    yield from lightning_shards.acts(plan)


class Steering:
    """What is done to Trainer and to Fabric. Once it fails, each act of ours is off, and training goes on."""

    def __init__(self, plan: dict[str, Any], note: Call, guard: Call) -> None:
        self.plan = plan
        self.note = note
        self.arguments = guard(self.settle_arguments)
        self.prepare = guard(self.recompute_alone)
        self.tell = guard(functools.partial(tell, plan, note))

    def steer_trainer(self, trainer: Any) -> None:
        """Give each Trainer the plan's arguments, and ask it what it became once it has set up a model for training."""
        build = trainer.Trainer.__init__

        @functools.wraps(build)  # LightningCLI reads the signature
        def init(owner: Any, *args: Any, **kwargs: Any) -> None:
            self.build(build, owner, args, kwargs)
            strategy = owner.strategy
            setup = strategy.setup

            @functools.wraps(setup)
            def set_up(trainer: Any) -> None:
                module, training = strategy.lightning_module, trainer.state.fn == "fit"
                if training:
                    self.prepare(module)
                setup(trainer)
                if training:
                    self.tell(trainer, strategy, strategy.model)
                elif is_sharded(module):
                    # Lightning evaluates without the wrapper, whose forward is what gathers a sharded model.
                    strategy.configure_ddp()

            strategy.setup = set_up  # of this object: each kind of strategy has a setup() of its own

        trainer.Trainer.__init__ = init

    def steer_fabric(self, fabric: Any) -> None:
        """Give each Fabric the plan's arguments, and ask it what it became whenever it has set up a model."""
        kind = fabric.Fabric
        build = kind.__init__

        @functools.wraps(build)
        def init(owner: Any, *args: Any, **kwargs: Any) -> None:
            self.build(build, owner, args, kwargs)

        def telling(setup: Call) -> Call:
            @functools.wraps(setup)
            def set_up(owner: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
                self.prepare(module)
                result = setup(owner, module, *args, **kwargs)
                model = result[0] if isinstance(result, tuple) else result
                model = getattr(model, "_orig_mod", model)  # torch.compile's object around Fabric's
                # Fabric's own wrapper shows the script's model only; what the strategy made of it is this attribute.
                self.tell(owner, owner.strategy, getattr(model, "_forward_module", model))
                return result

            return set_up

        kind.__init__ = init
        kind.setup, kind.setup_module = telling(kind.setup), telling(kind.setup_module)

    def recompute_alone(self, module: Any) -> None:
        """Have activations recomputed where there is no DistributedDataParallel at which that would be done."""
        if self.plan["strategy"] == "single" and self.plan["activation_checkpointing"] != "none":
            recompute(module, self.plan["activation_checkpointing"])

    def build(self, build: Call, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Build a Trainer or Fabric with the plan's arguments; raise if it would train in other processes."""
        named = self.arguments(build, owner, args, kwargs)
        if named is None:
            build(owner, *args, **kwargs)
        else:
            build(owner, **named)
        refuse(owner, owner.strategy, self.plan["launcher"]["nproc_per_node"])

    def settle_arguments(self, build: Call, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the arguments by name, the script's and the plan's."""
        if args and not hasattr(build, "__wrapped__"):
            return None  # Fabric says in its own words that it takes no positional arguments
        known = inspect.signature(build).parameters
        # Trainer names positional arguments after the parameters of the class at hand.
        named = dict(zip(inspect.signature(type(owner)).parameters, args, strict=False)) | kwargs
        prefix = f"PL_{type(owner).__name__}_"  # variables that Trainer takes for arguments not passed
        said = {name: os.environ[variable] for name in known if (variable := (prefix + name).upper()) in os.environ}
        given, kept = settle(said | named, self.plan, known.keys())
        overridden = {name: plain((said | named)[name]) for name in given if (said | named).get(name) is not None}
        if given or kept:
            call = "Trainer" if "max_epochs" in known else "Fabric"
            renamed = [{f"{call}({name})": value for name, value in ones.items()} for ones in (given, overridden)]
            self.note("ddp", given=renamed[0], overridden=renamed[1], kept=kept)
        return named | given


def settle(said: dict[str, Any], plan: dict[str, Any], known: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments that the plan sets, and by the plan's name what the script's call decides.

    The plan decides how many processes there are and on what; a strategy of the script's own stays.
    """
    ranks = plan["launcher"]["nproc_per_node"]
    accelerator = "cpu" if plan["launcher"]["device"] == "cpu" else "gpu"
    strategy = said.get("strategy")
    given: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    if strategy in (None, "auto"):
        if ranks > 1:
            given["strategy"] = "ddp"
    elif isinstance(strategy, str) and strategy.startswith("ddp"):
        given["strategy"] = started_outside(strategy)
    elif not any(base.__name__ == "DDPStrategy" for base in type(strategy).__mro__):
        kept["strategy"] = plain(strategy)
    if not says_devices(said.get("devices"), ranks):
        given["devices"] = ranks
    if str(said.get("num_nodes", 1)) != "1":
        given["num_nodes"] = 1
    # Accelerators that come as objects stay, also those within a strategy: Lightning takes one or the other.
    name = said.get("accelerator") or "auto"
    same = ("cpu",) if accelerator == "cpu" else ("gpu", "cuda")
    if isinstance(name, str) and name not in same and getattr(strategy, "accelerator", None) is None:
        given["accelerator"] = accelerator
    if plan["strategy"] in ("fsdp", "hsdp"):
        # Weights gathered in inference mode can't be trained on; Lightning's own FSDP leaves it out as well.
        given["inference_mode"] = False
    given = {name: value for name, value in given.items() if name in known and said.get(name) != value}
    return given, kept


def started_outside(strategy: str) -> str:
    """Return the kind of a DDP strategy that starts no processes itself: torchrun has."""
    for own_start in ("_spawn", "_fork", "_notebook"):
        strategy = strategy.replace(own_start, "")
    return strategy


def says_devices(devices: Any, ranks: int) -> bool:
    """Say whether `devices` asks for as many as there are processes, the first of those that each can see."""
    if isinstance(devices, list | tuple):
        return list(devices) == list(range(ranks))
    return str(devices) == str(ranks)


def plain(value: Any) -> Any:
    """Return what a report can hold of an argument."""
    return value if isinstance(value, str | int | float | bool | list) else type(value).__name__


def refuse(owner: Any, strategy: Any, ranks: int) -> None:
    kind = type(strategy).__name__
    if owner.world_size != ranks:
        raise RuntimeError(
            f"{kind} would train with {owner.world_size} of the {ranks} processes that the plan starts: leave strategy "
            f"and devices out of {type(owner).__name__}(...)"
        )
    # torchrun has started the processes; DDPStrategy keeps only here whether it starts its own.
    if ranks > 1 and getattr(strategy, "_start_method", None) not in (None, "popen"):
        raise RuntimeError(
            f"{kind} starts its own processes, {ranks} times that would be too many: leave start_method out"
        )


def tell(plan: dict[str, Any], note: Call, owner: Any, strategy: Any, model: Any) -> None:
    """Write down what the plan wants, and what the live objects say they are."""
    wanted, became = wanted_of(plan), became_of(owner, strategy, model)
    package = type(strategy).__module__.split(".")[0]  # a strategy may be the script's own
    package = package if package in ("lightning", "pytorch_lightning", "lightning_fabric") else "lightning"
    version = getattr(sys.modules.get(package), "__version__", "")
    names = [name for name in wanted if name in became]
    wanted, became = ({name: values[name] for name in names} for values in (wanted, became))
    note("library", name=f"{package} {version}", wanted=wanted, became=became)


def wanted_of(plan: dict[str, Any]) -> dict[str, Any]:
    ranks, sharded = plan["launcher"]["nproc_per_node"], plan["strategy"] in ("fsdp", "hsdp")
    wanted = {"processes": ranks, "device": plan["launcher"]["device"]}
    if plan["precision"] is not None:
        wanted["precision"] = plan["precision"]
    if ranks > 1:
        wanted["strategy"] = "DDPStrategy"
        wanted["model"] = "DistributedDataParallel, sharded" if sharded else "DistributedDataParallel"
    if sharded:
        hybrid = [ranks // plan["shard_size"], plan["shard_size"]]
        wanted["mesh"] = hybrid if plan["strategy"] == "hsdp" else [ranks]
    if plan["cpu_offload"]:
        wanted["weights between steps"] = "cpu"
    if plan["activation_checkpointing"] != "none":
        wanted["recomputation"] = True
    return wanted | {"accumulate_grad_batches": plan["accumulation"]}


def became_of(owner: Any, strategy: Any, model: Any) -> dict[str, Any]:
    from torch.distributed._composable.checkpoint_activation import checkpoint

    weights = [weight for weight in model.parameters() if hasattr(weight, "device_mesh")]
    precision = getattr(strategy, "precision_plugin", None) or strategy.precision  # of Trainer, of Fabric
    became = {
        "processes": owner.world_size,
        "device": strategy.root_device.type,
        "precision": PRECISIONS.get(precision.precision, precision.precision),
        "strategy": type(strategy).__name__,
        "model": type(model).__name__,
        "weights between steps": next(model.parameters()).device.type,
        "recomputation": any(checkpoint.state(part) is not None for part in model.modules()),
    }
    inside: Any = getattr(model, "module", None)
    if is_sharded(inside):
        became["model"] += ", sharded"
        if weights:  # none after an evaluation that leaves them gathered
            became["mesh"] = list(weights[0].device_mesh.shape)
        dtype = inside._get_fsdp_state()._mp_policy.param_dtype
        if dtype is not None and became["precision"] == "fp32":
            became["precision"] = {"torch.bfloat16": "bf16-params"}.get(str(dtype), str(dtype))
    if hasattr(owner, "accumulate_grad_batches"):
        became["accumulate_grad_batches"] = owner.accumulate_grad_batches
    return became
