"""What a training script is, read from its source and that of the modules beside it; nothing is executed."""

import ast
import fnmatch
import functools
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from advisor.executor.fixed_device import chooses_gpu, first_gpu
from advisor.executor.rank_zero import lone_states
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Value

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
LARGEST_SOURCE = 5_000_000  # bytes; a larger "script" is data
MOST_MODULES = 300  # of the script's own that are read with it


class Place(Value, frozen=True, kw_only=True):
    file: str
    line: int


class ScriptFacts(Value, frozen=True, kw_only=True):
    """Places may lie in modules of the script's own.

    `process_group` and `wrap` say where the script starts one and wraps its model, `joins` where it trains on uneven
    inputs, `lone_state` where rank 0 alone takes the state of the model or of an optimizer, `first_gpu` where each rank
    would take the first GPU that it sees.
    """

    path: str
    kind: Kind
    process_group: Place | None = None
    wrap: Place | None = None
    joins: Place | None = None
    lone_state: Place | None = None
    first_gpu: Place | None = None
    syntax_error: str | None = None


def read_script(script: str | os.PathLike[str]) -> ScriptFacts:
    """Say what kind of training script this is, or raise an AdvisorError if it is no Python file at all."""
    path = Path(script)
    try:
        tree = parsed(source_of(path), path)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        where = "" if line is None else f"line {line}: "
        return ScriptFacts(path=str(script), kind="unknown", syntax_error=f"{where}{error.args[0]}")
    uses, words, lone, gpu = _gather(path, tree)
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
    return ScriptFacts(
        path=str(script),
        kind=kind,
        process_group=group,
        wrap=wrap,
        joins=uses.get(JOIN),
        lone_state=lone,
        first_gpu=gpu if kind in ("ddp", "fsdp") else None,  # libraries choose the GPU themselves
    )


def source_of(path: Path) -> bytes:
    hint = "give the path of the training script"
    if path.is_dir():
        raise AdvisorError(f"{path} is a folder, not a script", hint)
    try:
        size = path.stat().st_size
        source = path.read_bytes() if size <= LARGEST_SOURCE else b"\0"
    except OSError as error:
        raise AdvisorError(f"can't read the script {path}: {error.strerror}", hint) from error
    if b"\0" in source:
        raise AdvisorError(f"{path} is not a Python script: it holds binary data", hint)
    return source


def parsed(source: bytes, path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in the user's strings are not ours to report
        return ast.parse(source, str(path))


def _gather(script: Path, tree: ast.Module) -> tuple[dict[str, Place], set[str], Place | None, Place | None]:
    """Collect the full names that the script and its own modules use, and their string constants.

    Then where rank 0 alone takes a state, and where each rank takes the first GPU.
    """
    uses: dict[str, Place] = {}
    words: set[str] = set()
    lone: Place | None = None
    gpu: Place | None = None
    chosen = False
    for path, module in own_modules(script, tree):
        names = dict(imported(module))
        full_name = functools.partial(spelt_out, names=names)
        states = lone_states(module, full_name, DDP)
        if states and lone is None:
            lone = Place(file=str(path), line=states[0])
        chosen = chosen or chooses_gpu(module, full_name)
        if gpu is None and (line := first_gpu(module, full_name)) is not None:
            gpu = Place(file=str(path), line=line)
        for name, line in _uses(module, names):
            uses.setdefault(name, Place(file=str(path), line=line))
        words.update(n.value for n in ast.walk(module) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return uses, words, lone, None if chosen else gpu


def own_modules(script: Path, tree: ast.Module) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the script, then each module of its own that it imports, and those that these import."""
    waiting = [(script, tree)]
    seen = {script}
    while waiting:
        path, module = waiting.pop(0)
        yield path, module
        for own in _own_files(script.parent, path.parent, module):
            if own not in seen and len(seen) < MOST_MODULES:
                seen.add(own)
                try:
                    waiting.append((own, parsed(own.read_bytes(), own)))
                except (OSError, SyntaxError, ValueError, RecursionError):
                    continue


def imported(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each name that imports and plain assignments bind, with the full name that it stands for."""
    bound: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(module):  # DDP = torch.nn.parallel.DistributedDataParallel
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            full = spelt_out(node.value, bound)
            if full is not None:
                bound.setdefault(node.targets[0].id, full)
    yield from bound.items()


def _uses(module: ast.Module, names: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield the full names that the code uses, calls first: where one is called says more than where it is named."""
    calls = [(node.func, node.lineno) for node in ast.walk(module) if isinstance(node, ast.Call)]
    nodes = [node for node in ast.walk(module) if isinstance(node, ast.Name | ast.Attribute)]
    mentions = [(node, node.lineno) for node in nodes if isinstance(node.ctx, ast.Load)]
    for node, line in [*calls, *mentions]:
        full = spelt_out(node, names)
        if full is not None:
            yield full, line
        elif isinstance(node, ast.Attribute) and node.attr == "backward":
            yield BACKWARD, line
    for call in (node for node in ast.walk(module) if isinstance(node, ast.withitem)):
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


def _own_files(root: Path, package: Path, module: ast.Module) -> Iterator[Path]:
    """Yield the files below `root`, the script's folder, that the imports of a module in folder `package` may load."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            targets = [(root, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = root if node.level == 0 else Path(os.path.normpath(package.joinpath(*[".."] * (node.level - 1))))
            targets = [(base, ".".join(filter(None, (node.module, alias.name)))) for alias in node.names]
        else:
            continue
        for base, name in targets:
            parts = name.split(".")
            for depth in range(1, len(parts) + 1):
                stem = base.joinpath(*parts[:depth])
                yield from (
                    file for file in (stem.with_name(stem.name + ".py"), stem / "__init__.py") if file.is_file()
                )


def _has_own_loop(uses: Mapping[str, Place]) -> bool:
    """Say whether the training loop is seen to be written here, rather than in a library that may start processes."""
    return BACKWARD in uses and any(name.split(".")[0] == "torch" for name in uses)


def _first(uses: Mapping[str, Place], names: tuple[str, ...]) -> Place | None:
    """Return the first place at which one of the names is used; a name may hold a star."""
    found = (name for pattern in names for name in uses if name == pattern or fnmatch.fnmatchcase(name, pattern))
    return next((uses[name] for name in found), None)
