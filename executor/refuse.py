"""Say no before anything starts, where a script can't be run as planned."""

from advisor.executor.script import ScriptFacts
from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Plan

WITH_DDP = """add these lines to {path}, then run it again:
    torch.distributed.init_process_group()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = torch.nn.parallel.DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])
    sampler = torch.utils.data.DistributedSampler(dataset)  # pass it to the DataLoader; sampler.set_epoch(epoch)
or train on one GPU: --gpus 1"""


def refuse(plan: Plan, facts: ScriptFacts) -> None:
    """Raise an AdvisorError if running this script would be something else than the plan says.

    A script with a syntax error is let through: python says best what is wrong with it. Micro-batch, accumulation and
    precision are the script's own; the plan describes them.
    """
    _refuse_plan(plan)
    if plan.ranks > 1 and facts.syntax_error is None:
        _refuse_script(plan, facts)


def _refuse_plan(plan: Plan) -> None:
    """Refuse what can't be done to a script that brings its own DistributedDataParallel."""
    beyond = {
        f'strategy="{plan.strategy}"': plan.strategy not in ("single", "ddp"),
        "cpu_offload=true": plan.cpu_offload,
        f'activation_checkpointing="{plan.activation_checkpointing}"': plan.activation_checkpointing != "none",
        f'gradient_dtype="{plan.gradient_dtype}"': plan.gradient_dtype != "fp32",
    }
    found = ", ".join(name for name, holds in beyond.items() if holds)
    if found:
        raise AdvisorError(
            f"can't bring a DDP script to a plan with {found}", "type --only ddp for a plan that it can run"
        )
    if plan.nodes != 1:
        raise AdvisorError(
            f"the plan is for {plan.nodes} hosts, this starts one", "plan for this machine: leave --machine out"
        )
    ranks, processes = len(plan.gpus), plan.launcher.nproc_per_node
    if ranks != processes:
        fields = f"gpus lists {ranks}, launcher.nproc_per_node is {processes}"
        raise AdvisorError(f"the plan contradicts itself: {fields}", "make them equal, or let advisor recommend a plan")


def _refuse_script(plan: Plan, facts: ScriptFacts) -> None:
    path = facts.path
    line = "" if facts.wrap is None else f" ({facts.wrap.file}, line {facts.wrap.line})"
    if facts.kind == "plain":
        what = f"{path} starts no process group: {plan.ranks} copies would be {plan.ranks} independent trainings"
        raise AdvisorError(what, WITH_DDP.format(path=path))
    if facts.kind == "spawn":
        hint = "start one process per GPU outside: call its worker with int(os.environ['LOCAL_RANK']), or use --gpus 1"
        raise AdvisorError(f"{path} starts its own processes{line}, {plan.ranks} times that would be too many", hint)
    if facts.kind in ("fsdp", "deepspeed"):
        what = f"{path} shards its model by itself{line}; the plan is for DDP, so its predictions would not hold"
        raise AdvisorError(what, "run it with torchrun, or wrap the model with DistributedDataParallel")
