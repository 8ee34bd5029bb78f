"""Say no before anything starts, where a script can't be run as planned."""

from advisor.executor.script import Place, ScriptFacts
from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Plan

SHARDED = ("fsdp", "hsdp")
WRAPS = (
    "ddp",
    "accelerate",
    "trainer",
    "lightning",
)  # the script, or the library it uses, calls DistributedDataParallel


def refuse(plan: Plan, facts: ScriptFacts) -> None:
    """Raise an AdvisorError if running this script would be something else than the plan says.

    A script with a syntax error is let through: python says best what is wrong with it. Micro-batch, accumulation and
    precision by autocast are the script's own; the plan describes them.
    """
    _refuse_plan(plan)
    if facts.syntax_error is not None:
        return
    if plan.ranks > 1:
        _refuse_script(plan, facts)
    _refuse_without_wrap(plan, facts)
    if plan.strategy in SHARDED:
        _refuse_sharding(facts)


def _refuse_plan(plan: Plan) -> None:
    """Refuse what can't be done, or not on one host."""
    if plan.cpu_offload and plan.strategy not in SHARDED:
        hint = 'write strategy "fsdp" in the plan'
        raise AdvisorError(f'only FSDP can offload to host memory, the plan is strategy="{plan.strategy}"', hint)
    if plan.precision == "bf16-params" and plan.strategy not in SHARDED:
        hint = 'write "bf16-autocast" in the plan, and use torch.autocast in the script'
        raise AdvisorError(f"only FSDP brings its own 16-bit weights, the plan is strategy={plan.strategy!r}", hint)
    if plan.nodes != 1:
        raise AdvisorError(
            f"the plan is for {plan.nodes} hosts, this starts one", "plan for this machine: leave --machine out"
        )
    ranks, processes = len(plan.gpus), plan.launcher.nproc_per_node
    if ranks != processes:
        fields = f"gpus lists {ranks}, launcher.nproc_per_node is {processes}"
        raise AdvisorError(f"the plan contradicts itself: {fields}", "make them equal, or let advisor recommend a plan")
    if plan.strategy == "hsdp" and (ranks % plan.shard_size or not 1 < plan.shard_size < ranks):
        fields = f"shard_size is {plan.shard_size}, of {ranks} ranks"
        raise AdvisorError(f"the plan contradicts itself: {fields}", "give hsdp a shard_size that divides the ranks")


def _refuse_script(plan: Plan, facts: ScriptFacts) -> None:
    path = facts.path
    line = _where(facts.wrap)
    if facts.kind == "plain" and plan.accumulation > 1:
        what = f"{path} is a script for one process: how often it goes backward per optimizer step is its own choice"
        raise AdvisorError(what, 'write "accumulation": 1 in the plan')
    if facts.kind == "spawn":
        hint = "start one process per GPU outside: call its worker with int(os.environ['LOCAL_RANK']), or use --gpus 1"
        raise AdvisorError(f"{path} starts its own processes{line}, {plan.ranks} times that would be too many", hint)
    if facts.kind == "deepspeed" and plan.strategy == "hsdp":
        what = (
            f"{path} trains with DeepSpeed{line}, which shards over all ranks, not within groups of {plan.shard_size}"
        )
        raise AdvisorError(what, "type --only ddp,fsdp for a plan that it can run")
    if facts.kind == "fsdp" and plan.strategy not in SHARDED:
        what = f"{path} shards its model by itself{line}; the plan is for DDP, so its predictions would not hold"
        raise AdvisorError(what, "run it with torchrun, or wrap the model with DistributedDataParallel")


def _refuse_without_wrap(plan: Plan, facts: ScriptFacts) -> None:
    """Refuse what is done to the model when it is wrapped, where no call is seen that we could do it at."""
    steered = (*WRAPS, "deepspeed", "fsdp") if plan.strategy in SHARDED else (*WRAPS, "deepspeed")
    wanted = {
        f'strategy="{plan.strategy}"': plan.strategy in SHARDED,
        f'activation_checkpointing="{plan.activation_checkpointing}"': plan.activation_checkpointing != "none",
        f'gradient_dtype="{plan.gradient_dtype}"': plan.gradient_dtype != "fp32" and plan.ranks > 1,
    }
    found = ", ".join(name for name, holds in wanted.items() if holds)
    if found and facts.kind == "plain":
        _refuse_plain(plan, facts)
    elif found and facts.kind not in steered:
        what = f"{facts.path} has no DistributedDataParallel call that a plan with {found} could be brought in by"
        raise AdvisorError(what, "type --only ddp for a plan that it can run, or wrap the model in the script")
    if plan.activation_checkpointing != "none" and facts.kind == "fsdp":
        what = f"{facts.path} shards its model by itself{_where(facts.wrap)}, and activations must be dealt with before"
        hint = "checkpoint the blocks in the script, before fully_shard: torch.utils.checkpoint, use_reentrant=False"
        raise AdvisorError(what, hint)


def _refuse_plain(plan: Plan, facts: ScriptFacts) -> None:
    """Refuse what is not done to the model of a script for one process."""
    what = f"{facts.path} is a script for one process, which"
    if plan.cpu_offload:
        raise AdvisorError(f"{what} is not trained with weights in host memory yet", 'write "cpu_offload": false')
    if plan.ranks == 1:
        found = f'activation_checkpointing="{plan.activation_checkpointing}"'
        raise AdvisorError(f"{what} runs as it is on one GPU; nothing is changed in it to bring {found} in", "--gpus 2")
    if plan.gradient_dtype != "fp32" and plan.strategy not in SHARDED:
        hint = 'write "gradient_dtype": "fp32" in the plan, or type --only fsdp'
        raise AdvisorError(f"{what} averages its gradients in the precision they have", hint)


def _refuse_sharding(facts: ScriptFacts) -> None:
    """Refuse what fails once a DDP script's model is sharded; what hangs then, SCR141 finds."""
    if facts.kind == "ddp" and facts.joins is not None:
        what = f"{facts.path} trains on uneven inputs with join(){_where(facts.joins)}, which FSDP can't"
        raise AdvisorError(what, "give all ranks the same number of batches, or type --only ddp")


def _where(place: Place | None) -> str:
    return "" if place is None else f" ({place.file}, line {place.line})"
