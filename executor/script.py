"""What a training script is, read from its source and that of the modules beside it; nothing is executed."""

import ast
import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from advisor.executor.own_modules import own_modules, source_of
from advisor.rules.machine import Value
from advisor.rules.source import source as engine
from advisor.rules.source.devices import first_gpu
from advisor.rules.source.modules import BROKEN, module_of
from advisor.rules.source.source import Source
from advisor.rules.source.value import Module

Kind = Literal["plain", "ddp", "fsdp", "accelerate", "trainer", "lightning", "deepspeed", "spawn", "unknown"]

DDP = ("torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel")
PROCESS_GROUP = (
    "torch.distributed.init_process_group",
    "torch.distributed.distributed_c10d.init_process_group",
    "torch.distributed.init_device_mesh",  # starts the process group itself where none is
    "torch.distributed.device_mesh.init_device_mesh",
)
SPAWN = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes", "torch.multiprocessing.spawn.spawn")
LIGHTNING = (
    *("lightning.*Trainer", "pytorch_lightning.*Trainer", "lightning.*LightningCLI", "pytorch_lightning.*LightningCLI"),
    *("lightning.*Fabric", "lightning_fabric.*Fabric"),
)
# Who distributes the model, the most telling first. A script that offers DDP beside FSDP can run a plan for DDP.
LIBRARIES: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    ("deepspeed", ("deepspeed.initialize",)),
    ("lightning", LIGHTNING),
    ("accelerate", ("accelerate.Accelerator",)),
    ("trainer", ("transformers.*Trainer", "trl.*Trainer")),
    ("ddp", DDP),
    ("fsdp", ("torch.distributed.fsdp.fully_shard", "torch.distributed.fsdp.FullyShardedDataParallel")),
)
BACKWARD = "<loss>.backward"  # of whatever object
JOIN = "<model>.join"  # as a context


class Place(Value, frozen=True, kw_only=True):
    file: str
    line: int


class ScriptFacts(Value, frozen=True, kw_only=True):
    """Places may lie in modules of the script's own.

    `process_group` and `wrap` say where the script starts one and wraps its model, `joins` where it trains on uneven
    inputs, `first_gpu` where each rank would take the first GPU that it sees.
    """

    path: str
    kind: Kind
    process_group: Place | None = None
    wrap: Place | None = None
    joins: Place | None = None
    first_gpu: Place | None = None
    syntax_error: str | None = None


def read_script(script: str | os.PathLike[str]) -> ScriptFacts:
    """Say what kind of training script this is, or raise an AdvisorError if it is no Python file at all."""
    path = Path(script)
    text = source_of(path)
    try:
        module_of(str(path), str(path), text)
    except BROKEN as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        where = "" if line is None else f"line {line}: "
        return ScriptFacts(path=str(script), kind="unknown", syntax_error=f"{where}{error.args[0]}")
    modules = own_modules(path)
    return facts_of(script, modules, engine.source_of(modules))


def facts_of(script: str | os.PathLike[str], modules: Sequence[Module], source: Source) -> ScriptFacts:
    """Say what kind of training script this is, from its parsed modules and what it was seen to do."""
    uses, words = _gather(modules)
    group = _first(uses, PROCESS_GROUP)
    kind = next((kind for kind, names in LIBRARIES if _first(uses, names)), None)
    wrap = next((_first(uses, names) for library, names in LIBRARIES if library == kind), None)
    knows_ranks = bool(words & {"RANK", "LOCAL_RANK", "WORLD_SIZE"})  # set by torchrun
    if kind is None:
        alone = not knows_ranks and not any(name.startswith("torch.distributed") for name in uses)
        kind = "plain" if alone and _has_own_loop(uses) else "unknown"
    spawn = _first(uses, SPAWN)
    if spawn is not None and not knows_ranks and kind in ("ddp", "fsdp", "unknown"):
        kind, wrap = "spawn", spawn
    gpu = first_gpu(source) if kind in ("ddp", "fsdp") and "LOCAL_RANK" not in words else None
    return ScriptFacts(
        path=str(script),
        kind=kind,
        process_group=group,
        wrap=wrap,
        joins=uses.get(JOIN),
        first_gpu=None if gpu is None else Place(file=gpu[0], line=gpu[1]),  # libraries choose the GPU themselves
    )


def _gather(modules: Sequence[Module]) -> tuple[dict[str, Place], set[str]]:
    """Collect the full names that the script and its own modules use, and their string constants."""
    uses: dict[str, Place] = {}
    words: set[str] = set()
    for module in modules:
        for name, line in _uses(module, dict(imported(module))):
            uses.setdefault(name, Place(file=module.path, line=line))
        words.update(n.value for n in module.nodes if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return uses, words


def imported(module: Module) -> Iterator[tuple[str, str]]:
    """Yield each name that imports and plain assignments bind, with the full name that it stands for."""
    bound: dict[str, str] = {}
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in module.nodes:  # DDP = torch.nn.parallel.DistributedDataParallel
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            full = spelt_out(node.value, bound)
            if full is not None:
                bound.setdefault(node.targets[0].id, full)
    yield from bound.items()


def _uses(module: Module, names: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield the full names that the code uses, calls first: where one is called says more than where it is named."""
    calls = [(node.func, node.lineno) for node in module.nodes if isinstance(node, ast.Call)]
    nodes = [node for node in module.nodes if isinstance(node, ast.Name | ast.Attribute)]
    mentions = [(node, node.lineno) for node in nodes if isinstance(node.ctx, ast.Load)]
    for node, line in [*calls, *mentions]:
        full = spelt_out(node, names)
        if full is not None:
            yield full, line
        elif isinstance(node, ast.Attribute) and node.attr == "backward":
            yield BACKWARD, line
    for call in (node for node in module.nodes if isinstance(node, ast.withitem)):
        target = call.context_expr
        if isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute) and target.func.attr == "join":
            yield JOIN, target.lineno


def spelt_out(node: ast.expr, names: Mapping[str, str]) -> str | None:
    """Spell out `nn.parallel.DistributedDataParallel` with what `nn` stands for; None unless it was imported."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return None
    return ".".join([names[node.id], *reversed(parts)])


def _has_own_loop(uses: Mapping[str, Place]) -> bool:
    """Say whether the training loop is seen to be written here, rather than in a library that may start processes."""
    return BACKWARD in uses and any(name.split(".")[0] == "torch" for name in uses)


def _first(uses: Mapping[str, Place], names: tuple[str, ...]) -> Place | None:
    """Return the first place at which one of the names is used; a name may hold a star."""
    found = (name for pattern in names for name in uses if name == pattern or fnmatch.fnmatchcase(name, pattern))
    return next((uses[name] for name in found), None)
