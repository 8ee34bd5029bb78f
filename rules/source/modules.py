"""The files of a script's own, parsed, and how its imports find them."""

import ast
import posixpath
import warnings
from collections.abc import Iterator, Mapping

from advisor.rules.errors import AdvisorError
from advisor.rules.source.value import Module

BROKEN = (SyntaxError, ValueError, RecursionError, MemoryError)  # what parsing raises


def parsed(path: str, text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in the user's strings are not ours to report
        return ast.parse(text, path)


def module_of(script: str, path: str, text: str) -> Module:
    """Parse a file; its name is how the script, or a module beside it, imports it."""
    inside = posixpath.relpath(path, posixpath.dirname(script) or ".").removesuffix(".py").removesuffix("/__init__")
    tree = parsed(path, text)
    return Module(path, inside.replace("/", "."), tree, text.splitlines(), list(nodes_of(tree)))


def script_module(path: str, text: str) -> Module:
    """Parse the script itself; whatever is wrong with it is one AdvisorError."""
    try:
        return module_of(path, path, text)
    except SyntaxError as error:
        where = "" if error.lineno is None else f", line {error.lineno}"
        raise AdvisorError(
            f"{path}{where}: {error.msg}", f"python says the same: python -m py_compile {path}"
        ) from error
    except ValueError as error:
        raise AdvisorError(f"{path} is not a Python script: {error}", "give the training script") from error
    except (RecursionError, MemoryError) as error:
        raise AdvisorError(
            f"{path} is nested too deeply to be read", "split the expression in several lines"
        ) from error


def modules_of(script: str, files: Mapping[str, str]) -> list[Module]:
    """Parse the script and the modules beside it; those that can't be parsed are left out, the script must be."""
    found = [script_module(script, files[script])]
    for path, text in files.items():
        if path != script:
            try:
                found.append(module_of(script, path, text))
            except BROKEN:
                continue
    return found


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes in the order of the source, without the marks that only say load or store."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        inner: list[ast.AST] = []
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                inner += [part for part in value if isinstance(part, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                inner.append(value)
        waiting += reversed(inner)
