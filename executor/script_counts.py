"""Where a plain script takes more from its training batches than their losses, seen in its source.

Right answers that it counts, results that it collects, samples that it multiplies a loss with, loops that evaluate a
model in training mode: of these a rank that loads its slice alone knows only a part. Names decide, so this is a guess;
it says which of two exact ways is tried first.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence

from advisor.executor.script import Place
from advisor.rules.source.value import Module

BACKWARD = "backward"
COUNTS = ("eq", "ne", "size", "argmax", "topk", "numpy", "tolist")  # methods whose result is of single samples
RATES = ("acc", "metric", "score", "correct", "iou", "f1")  # in the names of functions
KEEPS = ("append", "extend", "update", "add")
NOT_A_BATCH = ("load", "dataset", "optim", "sched", "_dl", "dl_", "param")
LOADERS = ("load", "_dl", "dl_")
WITHOUT_GRADIENTS = ("no_grad", "inference_mode", "set_grad_enabled", "eval")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def counted(modules: Sequence[Module]) -> Place | None:
    """Return the first place where the script or a module of its own does so."""
    functions = [node for module in modules for node in module.nodes if isinstance(node, Function)]
    training = learning(functions)
    for module in modules:
        lines = [line for body in innermost(module, training) for line in counts(body)]
        lines += evaluations(module, training)
        if lines:
            return Place(file=module.path, line=min(lines))
    return None


def innermost(module: Module, training: set[str]) -> Iterator[list[ast.stmt]]:
    """Yield the bodies of loops that train, and of functions that make a step, without those around them."""
    for node in module.nodes:
        if isinstance(node, Function):
            trains = calls(node.body, {BACKWARD})
        elif isinstance(node, ast.For | ast.While):
            trains = calls(node.body, training)
        else:
            continue
        inside = (one for part in node.body for one in ast.walk(part) if isinstance(one, ast.For | ast.While))
        if trains and not any(calls(one.body, training) for one in inside):
            yield node.body


def learning(functions: Iterable[Function]) -> set[str]:
    """Return the names of all functions that go backward, or call one that does."""
    found = {BACKWARD}
    while more := {one.name for one in functions if one.name not in found and calls(one.body, found)}:
        found |= more
    return found


def calls(body: Iterable[ast.AST], names: set[str]) -> bool:
    return any(isinstance(node, ast.Call) and name_of(node.func) in names for part in body for node in ast.walk(part))


def counts(body: Iterable[ast.AST]) -> Iterator[int]:
    """Yield the lines where something of single samples is added up, kept or read."""
    for node in (node for part in body for node in ast.walk(part)):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            values: list[ast.expr] = [node.value]
        elif (
            isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div) and mentions(node, ("loss", "item"))
        ):
            values = [node.left, node.right]  # a loss for all samples, or of each
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEEPS:
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item":
            values = [node.func.value] if any(isinstance(one, ast.Compare) for one in ast.walk(node)) else []
        else:
            continue
        if any(of_samples(part) for value in values for part in ast.walk(value)):
            yield node.lineno


def of_samples(node: ast.AST) -> bool:
    """Say whether an expression has to do with the single samples of a batch."""
    if isinstance(node, ast.Compare):
        return True
    if isinstance(node, ast.Attribute) and node.attr == "shape":
        return not mentions(node, NOT_A_BATCH)
    if not isinstance(node, ast.Call):
        return False
    name = name_of(node.func)
    if name == "item":
        return any(isinstance(one, ast.Call) and name_of(one.func) == "sum" for one in ast.walk(node.func))
    if name == "len" or name in COUNTS:
        return not mentions(node, NOT_A_BATCH)
    return any(rate in name.lower() for rate in RATES)


def evaluations(module: Module, training: set[str]) -> Iterator[int]:
    """Yield the lines of loops over loaders that no backward pass follows, where nothing switches gradients off."""
    scopes: list[Function | ast.Module] = [node for node in module.nodes if isinstance(node, Function)]
    for scope in [module.tree, *scopes]:
        inner = [part for part in scope.body if not isinstance(part, Function | ast.ClassDef)]
        nodes = [node for part in inner for node in ast.walk(part)]
        marks = [*nodes, *(node for one in getattr(scope, "decorator_list", ()) for node in ast.walk(one))]
        if any(isinstance(node, ast.Name | ast.Attribute) and name_of(node) in WITHOUT_GRADIENTS for node in marks):
            continue
        for node in nodes:
            if isinstance(node, ast.For) and mentions(node.iter, LOADERS) and not calls(node.body, training):
                yield node.lineno


def mentions(node: ast.AST, words: Sequence[str]) -> bool:
    names = [name_of(one).lower() for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute)]
    return any(word in name for word in words for name in names)


def name_of(node: ast.AST) -> str:
    """Return the last part of a name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
