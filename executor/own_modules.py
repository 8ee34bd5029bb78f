"""The files that a script consists of: itself, and the modules below its folder that it imports. All are read once."""

import ast
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from advisor.rules.errors import AdvisorError
from advisor.rules.format import memory
from advisor.rules.source.modules import BROKEN, module_of, script_module
from advisor.rules.source.value import Module

LARGEST_SOURCE = 5_000_000  # bytes; a larger "script" is data
MOST_MODULES = 300  # of the script's own that are read with it
MOST_SOURCE = 1_000_000  # bytes of all of them together; the nearest are read first


def source_of(path: Path) -> str:
    """Read a script's text, or raise an AdvisorError that says why it is none."""
    hint = "give the path of the training script"
    if path.is_dir():
        raise AdvisorError(f"{path} is a folder, not a script", hint)
    try:
        size = path.stat().st_size
        source = path.read_bytes() if size <= LARGEST_SOURCE else b""
    except OSError as error:
        raise AdvisorError(f"can't read the script {path}: {error.strerror}", hint) from error
    if size > LARGEST_SOURCE:
        raise AdvisorError(f"{path} is no script: it has {memory(size)}", hint)
    if b"\0" in source:
        raise AdvisorError(f"{path} is not a Python script: it holds binary data", hint)
    try:
        return importlib.util.decode_source(source)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise AdvisorError(f"{path} is not a Python script: {error}", hint) from error


def own_modules(script: Path) -> list[Module]:
    """Return the script, then the modules of its own that it imports, and those that these import, nearest first."""
    found = [script_module(str(script), source_of(script))]
    seen = {os.path.normpath(script)}
    read = 0
    for module in found:  # grows meanwhile
        for own in _own_files(script.parent, Path(module.path).parent, module):
            if os.path.normpath(own) in seen or len(seen) >= MOST_MODULES or read > MOST_SOURCE:
                continue
            seen.add(os.path.normpath(own))
            try:
                source = own.read_bytes()
                read += len(source)
                found.append(module_of(str(script), str(own), importlib.util.decode_source(source)))
            except (OSError, *BROKEN):
                continue
    return found


def _own_files(root: Path, package: Path, module: Module) -> Iterator[Path]:
    """Yield the files below `root`, the script's folder, that the imports of a module in folder `package` may load."""
    for node in module.nodes:
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
