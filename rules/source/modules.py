"""The files of a script's own, parsed, and how its imports find them."""

import ast
import posixpath
import warnings
from collections.abc import Mapping

from advisor.rules.errors import AdvisorError
from advisor.rules.source.value import Module

LARGEST = 5_000_000  # characters
TOO_LARGE = "give the training script; this is data"


def parse(path: str, text: str) -> ast.Module:
    """Parse a source; whatever is wrong with it is one AdvisorError."""
    if len(text) > LARGEST:
        raise AdvisorError(f"{path} has {len(text) / 1e6:.0f} million characters: no script is that large", TOO_LARGE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the user's strings are not ours to report
            return ast.parse(text, path)
    except SyntaxError as error:
        where = "" if error.lineno is None else f", line {error.lineno}"
        raise AdvisorError(
            f"{path}{where}: {error.msg}", f"python says the same: python -m py_compile {path}"
        ) from error
    except (RecursionError, MemoryError) as error:
        raise AdvisorError(
            f"{path} is nested too deeply to be read", "split the expression in several lines"
        ) from error
    except ValueError as error:
        raise AdvisorError(f"{path} is not a Python script: {error}", "give the training script") from error


def modules_of(script: str, files: Mapping[str, str]) -> dict[str, Module]:
    """Parse the script and the modules beside it; those that can't be parsed are left out, the script must be."""
    folder = posixpath.dirname(script)
    found = {}
    for path, text in files.items():
        try:
            tree = parse(path, text)
        except AdvisorError:
            if path == script:
                raise
            continue
        inside = posixpath.relpath(path, folder or ".").removesuffix(".py").removesuffix("/__init__")
        name = inside.replace("/", ".")
        found.setdefault(name, Module(path, name, tree, text.splitlines()))
    return found


def own_module(modules: Mapping[str, Module], name: str) -> Module | None:
    return modules.get(name)
