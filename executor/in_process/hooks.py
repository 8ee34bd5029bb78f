"""All that we change in the user's process, each once the script imports the module concerned.

So a script without torch starts as fast as ever. What the changes are lies in the files beside this one.
"""

import atexit
import contextlib
import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

Act = Callable[[ModuleType], None]
# The arguments of DDP that a plan sets at once, and the value by which a plan says that it asks for nothing.
PLANNED = {"bucket_cap_mb": None, "gradient_as_bucket_view": False}


def install(
    plan: dict[str, Any], recorder: Any, trial: dict[str, Any] | None = None, plain: dict[str, Any] | None = None
) -> None:
    """Have the plan put into effect and the steps recorded, once the script imports torch; of a trial, only some.

    `plain` says how a script that knows one process is run on all ranks.
    """
    acts: dict[str, list[Act]] = {
        "torch.optim.optimizer": [functools.partial(record_steps, recorder.step_ended)],
    }
    for name, act in planned_acts(plan, recorder, plain=plain is not None):
        acts.setdefault(name, []).append(act)
    for name, act in () if trial is None else trial_acts(trial, recorder):
        acts.setdefault(name, []).append(act)
    for name, act in () if plain is None else plain_acts(plan, plain, recorder):
        acts.setdefault(name, []).append(act)
    for name in acts.keys() & sys.modules.keys():
        before = dict(vars(sys.modules[name]))
        for act in acts.pop(name):
            act(sys.modules[name])
        hand_on(sys.modules[name], before)
    if acts:
        sys.meta_path.insert(0, _AfterImport(acts))


def hand_on(changed: ModuleType, before: dict[str, Any]) -> None:
    """Give what was changed in a module to those that have imported it by name: in a trial all is imported before."""
    both = ((old, vars(changed).get(name, old)) for name, old in before.items() if callable(old))
    instead = {id(old): new for old, new in both if new is not old}
    for module in list(sys.modules.values()) if instead else ():
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in instead:
                setattr(module, name, instead[id(value)])


def planned_acts(plan: dict[str, Any], recorder: Any, plain: bool) -> Iterator[tuple[str, Act]]:
    """Name the modules of torch that the plan changes, and how. Batches of a `plain` script are watched elsewhere."""
    with importing_ours():
        from advisor.executor.in_process import (
            alike,
            blocks,
            ddp,
            drift_watch,
            fsdp,
            hold,
            micro_batches,
            offload,
            on_accelerate,
            on_deepspeed,
            on_lightning,
            sharded,
            static_graph,
        )
    for library in (on_accelerate, on_lightning):
        yield from library.acts(plan, recorder.note, failing_open)
    look_at = functools.partial(observe, recorder, None)
    same, drift = alike.Alike(failing_open), drift_watch.DriftWatch(failing_open)
    watch = failing_open(same.watch)
    yield "deepspeed", functools.partial(on_deepspeed.steer, plan, recorder, failing_open, look_at, watch)
    asked = None
    if plan.get("accumulation", 1) > 1:
        asked = micro_batches.MicroBatches(plan)
        yield "torch.optim.optimizer", asked.steer_optimizers
        yield "torch.amp.grad_scaler", asked.steer_scaler
    if plan.get("cpu_offload"):
        yield "torch.distributed.distributed_c10d", offload.steer_process_group
    yield "torch.optim.optimizer", same.steer_optimizers
    yield "torch.optim.optimizer", drift.steer_optimizers
    yield "torch.utils.data.dataloader", same.steer_loaders
    yield from () if plain else fsdp.watching_acts(watch)
    if plan["strategy"] in ("fsdp", "hsdp"):
        sharding = sharded.Sharding(plan, recorder.note)
        if plan.get("shard_from") == "cpu" and plan["launcher"]["device"] != "cpu":
            held = hold.Hold(plan["launcher"]["device"], failing_open)
            yield "torch.nn.modules.module", held.steer_modules
            yield "torch.distributed.fsdp.fully_sharded_data_parallel", held.steer_fsdp1
        look = functools.partial(observe, recorder, asked)
        yield "accelerate.accelerator", functools.partial(on_accelerate.observe_sharded, look)
        yield "torch.nn.parallel.distributed", functools.partial(sharded.steer, sharding, look)
        fully_shard = functools.partial(fsdp.steer_fully_shard, plan, recorder.note)
        yield "torch.distributed.fsdp._fully_shard._fully_shard", fully_shard
        fsdp1 = functools.partial(fsdp.steer_fsdp1, plan, recorder.note)
        yield "torch.distributed.fsdp.fully_sharded_data_parallel", fsdp1
        return
    prepare: list[Callable[[Any], Any]] = []
    finish: list[Callable[[Any], Any]] = []
    if plan.get("activation_checkpointing", "none") != "none":
        prepare.append(functools.partial(blocks.recompute, which=plan["activation_checkpointing"]))
    if plan.get("gradient_dtype", "fp32") != "fp32":
        finish.append(functools.partial(ddp.send_gradients_as, plan["gradient_dtype"], failing_open))
    if asked is not None:
        accumulation = ddp.Accumulation(failing_open)
        finish.append(accumulation.watch)
        yield "torch.optim.optimizer", accumulation.steer_optimizers
        yield "torch.nn.utils.clip_grad", accumulation.steer_clipping
        yield "torch.amp.grad_scaler", accumulation.steer_scaler
    if plan.get("static_graph"):
        static = static_graph.StaticGraph(recorder.note)
        yield "torch.optim.optimizer", static.steer_optimizers
        yield "torch.nn.parallel.distributed", static.steer_ddp
    finish = [functools.partial(observe, recorder, asked), *finish, same.watch, drift.watch]
    yield "torch.nn.parallel.distributed", functools.partial(steer_ddp, plan, recorder.note, prepare, finish)


def trial_acts(given: dict[str, Any], recorder: Any) -> Iterator[tuple[str, Act]]:
    """Name the modules that a trial changes, and how."""
    with importing_ours():
        from advisor.executor.in_process import trial
    recorder.last_step = given["steps"]
    for name, act in trial.acts(given, recorder.note):
        yield name, functools.partial(or_end, act)


def plain_acts(plan: dict[str, Any], given: dict[str, Any], recorder: Any) -> Iterator[tuple[str, Act]]:
    """Name the modules that are changed for a plain script, and how."""
    with importing_ours():
        from advisor.executor.in_process import plain
    look = functools.partial(observe, recorder, None)
    atexit.register(plain.leave, recorder)
    for name, act in plain.acts(plan, given, recorder.folder.parent, recorder.note, look):
        yield name, functools.partial(or_end, act)


def or_end(act: Act, module: ModuleType) -> None:
    """Act on a module; where that fails the process ends: a trial could write, ranks could train apart."""
    try:
        act(module)
    except Exception as error:
        sys.stderr.write(f"advisor: {module.__name__} can't be changed as it must be: {error!r}\n")
        os._exit(1)


@contextlib.contextmanager
def importing_ours() -> Iterator[None]:
    """Make the files beside this one importable by their long names, in here only: the script may have an `advisor`."""
    theirs = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "advisor"}
    for name in theirs:
        del sys.modules[name]
    for name in ("advisor", "advisor.executor", "advisor.executor.in_process"):
        sys.modules[name] = ModuleType(name)
    folder = str(Path(importing_ours.__wrapped__.__code__.co_filename).parent)  # type: ignore[attr-defined]
    sys.modules[name].__path__ = [folder]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "advisor"]:
            del sys.modules[name]
        sys.modules.update(theirs)


def failing_open(act: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an act of ours: if it fails it says so once, does nothing from then on, and training goes on."""
    failed = False

    @functools.wraps(act)
    def guarded(*args: Any) -> Any:
        nonlocal failed
        if failed:
            return None
        try:
            return act(*args)
        except Exception as error:
            failed = True
            what = getattr(act, "__name__", "hook")
            sys.stderr.write(f"advisor: {what} failed and is off from here on, training goes on: {error!r}\n")
            return None

    return guarded


class _AfterImport:
    """Finder that lets the other finders work and runs an act once a module of interest has been executed."""

    def __init__(self, acts: dict[str, list[Act]]) -> None:
        self._acts = acts

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._acts:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is None or spec.loader is None:
            return spec
        acts = self._acts.pop(name)
        if not self._acts:
            sys.meta_path.remove(self)
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # back to the method of its class
            execute(module)
            for act in acts:
                failing_open(act)(module)

        loader.exec_module = exec_module
        return spec


def record_steps(step_ended: Callable[..., None], optimizer: Any) -> None:
    hook = failing_open(step_ended)
    # torch.compile reads this mark (torch._disable_dynamo sets it): the hook stays out of compiled optimizer steps.
    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    optimizer.register_optimizer_step_post_hook(hook)


def steer_ddp(
    plan: dict[str, Any],
    note: Callable[..., None],
    prepare: Collection[Callable[[Any], Any]],
    finish: Collection[Callable[[Any], Any]],
    distributed: Any,
) -> None:
    """Give each DistributedDataParallel that the script builds the plan's arguments.

    `prepare` is done to the model before it is wrapped, `finish` to the wrapper.
    """
    ddp = distributed.DistributedDataParallel
    build = ddp.__init__
    signature = inspect.signature(build)

    @failing_open
    def settle_ddp_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            call = signature.bind(*args, **kwargs)
        except TypeError:
            return None  # DDP says it in its own words
        note("ddp", **settle(call.arguments, plan, signature.parameters.keys()))
        for act in prepare:
            failing_open(act)(call.arguments["module"])
        return call.args, call.kwargs

    @functools.wraps(build)
    def init(*args: Any, **kwargs: Any) -> None:
        args, kwargs = settle_ddp_arguments(args, kwargs) or (args, kwargs)
        build(*args, **kwargs)
        for act in finish:
            failing_open(act)(args[0])

    ddp.__init__ = init


def observe(recorder: Any, asked: Any, model: Any) -> None:
    """Look at the passes of the first model, and count those of each one until its first optimizer step."""

    @failing_open
    def observe_first_model() -> None:
        if asked is not None:
            asked.watch(model)
        if recorder.finish_observing is None:
            recorder.finish_observing = observe_model(model, recorder.note)

    observe_first_model()


def observe_model(model: Any, note: Callable[..., None]) -> Callable[[], None]:
    """Look at the forward passes of the first step, and return what notes the model and its batch and stops looking.

    From shapes alone a run can be predicted that nobody described.
    """
    torch = sys.modules["torch"]
    seen: dict[str, Any] = {"forwards": 0}

    @failing_open
    def look(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            return  # an evaluation
        seen["forwards"] += 1
        if seen["forwards"] == 1:
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
            device = tensors[0].device.type if tensors else "cpu"
            on = torch.is_autocast_enabled(device)
            seen["inputs"] = [list(tensor.shape) for tensor in tensors]
            seen["autocast"] = str(torch.get_autocast_dtype(device)).removeprefix("torch.") if on else None

    handle = model.register_forward_pre_hook(look, with_kwargs=True)

    @failing_open
    def finish() -> None:
        handle.remove()
        replica = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        parameters = dict((model.module if replica else model).named_parameters())
        # DeepSpeed keeps the shape of a weight beside the part that this rank has.
        shapes = {name: list(getattr(one, "ds_shape", one.shape)) for name, one in parameters.items()}
        trainable = sum(math.prod(shapes[name]) for name, one in parameters.items() if one.requires_grad)
        note("model", parameters=shapes, trainable=trainable, **seen)

    return finish


def settle(arguments: dict[str, Any], plan: dict[str, Any], known: Collection[str]) -> dict[str, dict[str, Any]]:
    """Add the plan's arguments to those of a DDP call; return what was given, what it overrode and what was left alone.

    The plan decides the bucket cap; of the flags it sets those that the script leaves unsaid.
    """
    given: dict[str, Any] = {}
    overridden: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for name, nothing in PLANNED.items():
        planned, script = plan[name], arguments.get(name)
        if planned in (nothing, script) or name not in known:
            continue
        if name == "bucket_cap_mb" and arguments.get("bucket_cap_mb_list"):
            kept["bucket_cap_mb_list"] = list(arguments["bucket_cap_mb_list"])  # beside it DDP ignores the cap
        elif script is None or name == "bucket_cap_mb":
            given[name] = planned
            if script is not None:
                overridden[name] = script
        else:
            kept[name] = script
    arguments.update(given)
    return {"given": given, "overridden": overridden, "kept": kept}
