"""Whether a script puts everything on the first GPU that it sees, which on each rank would be the same one."""

import ast
from collections.abc import Callable

FullName = Callable[[ast.expr], str | None]
PLACES = ("to", "cuda")  # methods of models and tensors


def first_gpu(module: ast.Module, full_name: FullName) -> int | None:
    """Return the first line that names GPU 0, or the current GPU; None where there is none."""
    lines = [node.lineno for node in ast.walk(module) if isinstance(node, ast.expr) and _names_it(node, full_name)]
    return min(lines, default=None)


def chooses_gpu(module: ast.Module, full_name: FullName) -> bool:
    """Say whether the code gives ranks different GPUs: by LOCAL_RANK, `set_device` or a number put into "cuda:"."""
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and node.value in ("LOCAL_RANK", "cuda:"):
            return True
        if isinstance(node, ast.Call):
            name, numbers = full_name(node.func) or "", [*node.args, *(word.value for word in node.keywords)]
            varies = any(not isinstance(number, ast.Constant) for number in numbers)
            by_number = name in ("torch.cuda.set_device", "torch.cuda.device", "torch.accelerator.set_device_index")
            if varies and (by_number or (name == "torch.device" and len(numbers) > 1)):
                return True
            if varies and isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
                return True
    return False


def _names_it(node: ast.expr, full_name: FullName) -> bool:
    if isinstance(node, ast.Constant):
        return node.value == "cuda:0"
    if not isinstance(node, ast.Call):
        return False
    given = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    words = {word.arg: word.value for word in node.keywords}
    if "device_ids" in words and ast.unparse(words["device_ids"]) == "[0]":
        return True
    if full_name(node.func) == "torch.device":
        return given in (["cuda"], ["cuda", 0])
    if isinstance(node.func, ast.Attribute) and node.func.attr in PLACES:
        return given in (["cuda"], [0]) or (node.func.attr == "cuda" and not node.args and not node.keywords)
    return False
