from pathlib import Path

from advisor.executor.script_imports import ALWAYS, packages_of


def packages(folder: Path, source: str) -> tuple[str, ...]:
    script = folder / "train.py"
    script.write_text(source)
    found = packages_of(str(script))
    assert found[: len(ALWAYS)] == ALWAYS
    return found[len(ALWAYS) :]


def test_what_is_imported_before_anything_else_happens_is_listed_once(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text('"""Parts."""\nimport numpy\nfrom torch import nn\nimport os\n')
    source = '"""Train."""\nfrom __future__ import annotations\nimport os\nSEED = 0\nimport torch, parts\n'
    source += (
        "try:\n    import wandb\nexcept ImportError:\n    wandb = None\ndef main():\n    import late\nimport tqdm\n"
    )
    assert packages(tmp_path, source) == ("os", "parts", "wandb", "tqdm", "numpy")


def test_what_comes_after_a_statement_that_does_something_is_left_to_the_script(tmp_path: Path) -> None:
    for does in (
        'os.environ["HF_HOME"] = "here"',
        "print(1)",
        'sys.modules["x"] = None',
        "seed = os.getpid()",
        "if x: pass",
    ):
        assert packages(tmp_path, f"import os, sys\n{does}\nimport transformers\n") == ("os", "sys")


def test_packages_that_look_at_the_gpus_are_left_to_the_script(tmp_path: Path) -> None:
    assert packages(tmp_path, "import deepspeed\nimport bitsandbytes.optim\nimport numpy\n") == ("numpy",)
