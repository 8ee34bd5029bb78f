import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


def is_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.name)
def test_what_a_benchmark_takes_from_the_advisor_is_there(path: Path) -> None:
    tree = ast.parse(path.read_text())
    taken = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    for node in taken:
        if node.module.split(".")[0] == "advisor":
            module = importlib.import_module(node.module)
            names = [name.name for name in node.names]
            missing = [one for one in names if not hasattr(module, one) and not is_module(f"{node.module}.{one}")]
            assert not missing, f"{node.module} has no {missing}"
