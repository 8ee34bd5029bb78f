"""Errors among two ranks: each rank prints what it was told, in one line. errs_on_ranks.py FOLDER"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from advisor import checkpoint
from advisor.checkpoint import saving


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Linear(2, 2)
    checkpoint.save(folder, 1, model=model)
    told = []
    if rank == 0:
        try:
            checkpoint.save(folder, 2, model=model, wait=1)
        except checkpoint.CheckpointError as error:
            told.append(str(error))
    dist.barrier()
    real = saving.write_file

    def full_on_rank_1(path: Path, content: bytes) -> tuple[int, int]:
        if rank == 1:
            raise OSError(28, "No space left on device", str(path))
        return real(path, content)

    saving.write_file = full_on_rank_1
    for asynchronous in (False, True):
        try:
            checkpoint.save(folder, 3, model=model, asynchronous=asynchronous)
            checkpoint.wait()
        except checkpoint.CheckpointError as error:
            told.append(str(error))
    saving.write_file = real
    dist.barrier()  # rank 0 has removed what it had begun
    left = sorted(path.name for path in folder.iterdir())
    with torch.no_grad():
        model.weight.fill_(4)
    checkpoint.save(folder, 4, model=model, sharded=True, asynchronous=True)
    with torch.no_grad():
        model.weight.fill_(5)  # after the copy was made
    loaded = checkpoint.load(folder, model=model)
    told.append(f"{left} {loaded} {model.weight[0, 0].item()}")
    (folder / f"rank-{rank}.txt").write_text("\n".join(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
