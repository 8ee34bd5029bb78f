"""The packages that a script imports when it starts, for a process that imports them once for all trials."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from advisor.executor.own_modules import own_modules

ALWAYS = ("torch", "torch.distributed.fsdp", "torch._dynamo")  # the last two are imported by the first step
# They look at the GPUs, or start threads, when they are imported: a process forked afterwards could not use CUDA.
NOT_BEFORE_A_FORK = ("bitsandbytes", "deepspeed", "jax", "tensorflow", "vllm")


def packages_of(script: str) -> tuple[str, ...]:
    """List what the script and its own modules import before they do anything else, after what is always needed.

    What is imported later may depend on what was done before, such as a variable that was set.
    """
    named = [name for module in own_modules(Path(script)) for name in _imports(module.tree.body)]
    wanted = [name for name in named if name.split(".")[0] not in (*NOT_BEFORE_A_FORK, "__future__")]
    return tuple(dict.fromkeys([*ALWAYS, *wanted]))


def _imports(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Try):
            yield from _imports(node.body)
        elif not _does_nothing(node):
            return


def _does_nothing(node: ast.stmt) -> bool:
    """Say whether a statement of a module only defines something, or is its docstring."""
    if isinstance(node, ast.Assign) and not all(isinstance(target, ast.Name) for target in node.targets):
        return False
    if isinstance(node, ast.Assign | ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ImportFrom | ast.Pass)
