"""`static_graph` of a plan, switched on once the first steps have shown that the graph is static.

DDP itself believes the script. Where the graph then changes it is silently wrong, as measured with torch 2.13: a
parameter that gets no gradient any more leaves all gradients of that step apart, and DDP says so at the next forward
pass only; one that gets a gradient inside `no_sync()` alone keeps that of its own rank; a deep copy of the model is not
synchronised at all. So the model is watched before the switch, and three cheap checks stay after it.
"""

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

from advisor.executor.in_process.meet import say

WATCHED = 3  # optimizer steps before each vote
VOTES = 3  # GradScaler may skip the first steps, which then look like several passes per step
BY_PLAN = "_static_graph_by_plan"  # mark of a model whose script did not ask for it
STATIC, PASSES, NO_SYNC, CLOSURE, VARIES, HOOK, TRAINED = range(7)
REASONS = {
    PASSES: "the script makes more than one forward or backward pass per optimizer step",
    NO_SYNC: "the script accumulates with no_sync()",
    CLOSURE: "the script makes its passes inside optimizer.step(closure)",
    VARIES: "the parameters that get a gradient differ from step to step",
    HOOK: "torch's built-in communication hooks can't be taken along",
    TRAINED: "the script has changed which parameters are trained since the model was wrapped",
}
REMEDY = 'write "static_graph": false in the plan'
LESS = (
    f"the graph has changed: in this step not all parameters got a gradient that did in the first {WATCHED}: {REMEDY}"
)
LATE = f"this step's gradients were not averaged, as its forward pass was made before the last step: {REMEDY}"


class StaticGraph:
    """The models that the plan makes static."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._watches: list[Watch] = []

    def steer_ddp(self, distributed: Any) -> None:
        """Watch each DistributedDataParallel whose script leaves `static_graph` unsaid."""
        ddp = distributed.DistributedDataParallel
        build, restore = ddp.__init__, ddp.__setstate__
        signature = inspect.signature(build)

        @functools.wraps(build)
        def init(*args: Any, **kwargs: Any) -> None:
            build(*args, **kwargs)
            said = signature.bind(*args, **kwargs).arguments.get("static_graph")
            if said is None:
                self.watch(args[0])
            elif not said:
                self._note("ddp", given={}, overridden={}, kept={"static_graph": said})

        @functools.wraps(restore)
        def setstate(model: Any, state: dict[str, Any]) -> None:
            if state.get(BY_PLAN):  # nobody watches a copy
                state = {name: value for name, value in state.items() if name != BY_PLAN} | {"static_graph": False}
            restore(model, state)

        ddp.__init__, ddp.__setstate__ = init, setstate

    def watch(self, model: Any) -> None:
        why = unfit(model)
        if why is None:
            self._watches.append(Watch(model, self._note))
        else:
            off(why, self._note)

    def steer_optimizers(self, optimizer: Any) -> None:
        def before_step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            closure = any(value is not None for value in (*args[1:], *kwargs.values()))
            for watch in self._watches:
                watch.step_begins(optimizer, closure)

        before_step._torchdynamo_disable = True  # type: ignore[attr-defined]
        optimizer.register_optimizer_step_pre_hook(before_step)


def off(why: str, note: Callable[..., None]) -> None:
    say(f"static_graph stays off: {why}")
    note("ddp", given={}, overridden={}, kept={"static_graph": None})


def unfit(model: Any) -> str | None:
    """Say what about a model rules the switch out, if anything."""
    if getattr(model, "reducer", None) is None or getattr(model, "_use_python_reducer", False):
        return "this DistributedDataParallel has no reducer of its own"
    if getattr(model, "mixed_precision", None) is not None:
        return "it does not go with mixed_precision of DistributedDataParallel"
    parameters, sparse = model._build_params_for_reducer()
    if any(sparse):
        return "the model has sparse gradients"
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in parameters):
        return "the optimizer works inside the backward pass"
    return None


class Watch:
    """One model: watched, then switched or left alone.

    All ranks end an optimizer step with gradients equally often, so that is when they vote; the switch is made as the
    next forward pass begins, when no gradient is on its way, and is undone if the step that follows differs.
    """

    def __init__(self, model: Any, note: Callable[..., None]) -> None:
        import torch

        self._model = weakref.ref(model)
        self._note = note
        parameters, _ = model._build_params_for_reducer()
        self._ids = list(map(id, parameters))
        self._owners: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._phase = "watched"  # then "agreed", "switched", "static", or "off"
        self._forwards = self._unsynced = 0
        self._arrived = [0] * len(parameters)
        self._used: frozenset[int] | None = None  # the parameters with gradients, by position
        self._worst, self._steps, self._votes = STATIC, 0, 0

        def forward_begins(module: Any, *_: Any) -> None:  # a function, which deepcopy leaves as it is
            if module is self._model():
                self._forward_begins(module)

        disable: Callable[..., Any] = torch.compiler.disable  # compiled models call our hooks as they are
        self._handles = [model.register_forward_pre_hook(disable(forward_begins))]
        for i, parameter in enumerate(parameters):
            self._handles.append(parameter.register_post_accumulate_grad_hook(functools.partial(self._gradient, i)))

    def _gradient(self, i: int, _: Any) -> None:
        self._arrived[i] += 1

    def _forward_begins(self, model: Any) -> None:
        import torch

        if not torch.is_grad_enabled():
            return
        synced = model.require_backward_grad_sync
        self._forwards += synced
        self._unsynced += not synced
        if self._phase == "watched":
            if model._join_config.enable:  # a rank that has no inputs left would not come to vote
                self._give_up("the script trains on uneven inputs with join()")
        elif not synced:
            self._give_up(REASONS[NO_SYNC])
        elif self._phase == "agreed" or not model._static_graph_delay_allreduce_enqueued:
            # DDP takes the first backward pass as the model of all, and only if one forward pass went before it.
            rebuild(model, static=True)
            self._phase = "switched"

    def step_begins(self, optimizer: Any, closure: bool) -> None:
        model = self._model()
        if model is None or self._phase in ("agreed", "off") or not self._owns(optimizer):
            return
        if self._phase == "static":
            check_reduced(model)
        elif not any(self._arrived):
            if closure:
                self._worst = CLOSURE
        elif self._phase == "switched":
            if not model._static_graph_delay_allreduce_enqueued:
                raise RuntimeError(LATE)
            check_reduced(model)
            self._judge(STATIC)
            self._vote(model)
        else:
            self._judge(CLOSURE if closure else STATIC)
            if self._steps == WATCHED:
                self._vote(model)

    def _owns(self, optimizer: Any) -> bool:
        if optimizer not in self._owners:
            owned = (id(parameter) for group in optimizer.param_groups for parameter in group["params"])
            self._owners[optimizer] = not set(self._ids).isdisjoint(owned)
        return self._owners[optimizer]

    def _judge(self, found: int) -> None:
        used = frozenset(i for i, times in enumerate(self._arrived) if times)
        if self._unsynced:
            found = max(found, NO_SYNC)
        elif self._forwards != 1 or max(self._arrived) > 1:
            found = max(found, PASSES)
        elif used != (self._used or used):
            found = max(found, VARIES)
        self._used = used
        self._worst = max(self._worst, found)
        self._steps += 1
        self._forwards = self._unsynced = 0
        self._arrived = [0] * len(self._arrived)

    def _vote(self, model: Any) -> None:
        import torch
        import torch.distributed as dist

        builtin = model._get_ddp_logging_data().get("comm_hook") and not model._comm_hooks
        trained = list(map(id, model._build_params_for_reducer()[0])) == self._ids
        mine = max(self._worst, HOOK if builtin else STATIC, STATIC if trained else TRAINED)
        vote = torch.tensor([mine], dtype=torch.int32, device=model.device)
        dist.all_reduce(vote, dist.ReduceOp.MAX, group=model.process_group)
        worst = int(vote)
        self._votes += 1
        if worst == STATIC and self._phase == "switched":
            self._settle(model)
        elif worst == STATIC:
            self._phase = "agreed"
        elif worst == PASSES and self._phase == "watched" and self._votes < VOTES:
            self._worst, self._steps, self._used = STATIC, 0, None
        else:
            self._give_up(REASONS[worst])

    def _settle(self, model: Any) -> None:
        """Keep no hook but those of the parameters without gradients, which may not get any now."""
        self._stop("static")
        self._note("ddp", given={"static_graph": True}, overridden={}, kept={})
        for name, parameter in model.module.named_parameters():
            if id(parameter) in self._ids and self._ids.index(id(parameter)) not in (self._used or ()):
                parameter.register_post_accumulate_grad_hook(functools.partial(appeared, name))

    def _give_up(self, why: str) -> None:
        model = self._model()
        if model is not None and self._phase == "switched":
            rebuild(model, static=False)
        self._stop("off")
        off(why, self._note)

    def _stop(self, phase: str) -> None:
        self._phase = phase
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def rebuild(model: Any, static: bool) -> None:
    """Give a DistributedDataParallel a new reducer, as its `__setstate__` does; a reducer can't change after its start.

    Gradients that are views of the old buckets move to the new ones.
    """
    import torch.distributed as dist

    parameters, sparse = model._build_params_for_reducer()
    names = model._build_debug_param_to_name_mapping(parameters)
    model.reducer._remove_autograd_hooks()
    model.reducer = model.logger = None  # frees the old buckets first
    model._ddp_init_helper(parameters, sparse, names, static)
    model._has_rebuilt_buckets = False
    model.static_graph = static
    model.__dict__[BY_PLAN] = static
    if static:
        model._static_graph_delay_allreduce_enqueued = False
        model.reducer._set_static_graph()
        model.logger._set_static_graph()
    for hook, state in model._comm_hooks:
        model.logger._set_comm_hook_name(hook.__qualname__)
        dist._register_comm_hook(model.reducer, state, hook)  # type: ignore[attr-defined]


def check_reduced(model: Any) -> None:
    try:
        model.reducer._check_reducer_finalized()
    except RuntimeError:
        raise RuntimeError(LESS) from None


def appeared(name: str, _: Any) -> None:
    raise RuntimeError(f"the graph has changed: {name} got a gradient, and none in the first {WATCHED} steps: {REMEDY}")
