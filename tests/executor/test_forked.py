import os
from pathlib import Path

import pytest

from advisor.executor.forked import forks

TELLS = "import os\nprint(os.environ['RANK'], os.environ['LOCAL_RANK'], os.environ['CUDA_VISIBLE_DEVICES'])\n"


@pytest.mark.parametrize(
    ("own_gpu", "told"), [(True, ["0 0 GPU-a", "1 0 GPU-b"]), (False, ["0 0 GPU-a,GPU-b", "1 1 GPU-a,GPU-b"])]
)
def test_a_rank_sees_its_own_gpu_alone_where_the_script_takes_the_first(
    tmp_path: Path, *, own_gpu: bool, told: list[str]
) -> None:
    program = tmp_path / "tells.py"
    program.write_text(TELLS)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    with forks(tmp_path / "trials", environment) as running:
        folder = running.next_folder()
        answer = running.run([str(program)], 2, folder, environment, 30.0, own_gpu=own_gpu)
    assert answer["statuses"] == [0, 0]
    assert [(folder.logs / f"{rank}.out").read_text().strip() for rank in range(2)] == told
