"""Every rank reads the same stream.

## What it finds
A DataLoader over an IterableDataset, drawn from by a training loop on several ranks, where neither the dataset's class
nor what it was made of knows of ranks.

## Why it matters
Nothing splits a stream: a DistributedSampler can't. All ranks, and all workers of each, yield the same samples, so
that the gradient is that of one rank and each sample is seen many times.

## What to do
In `__iter__`, start at `rank * workers + worker` and step by `world_size * workers`; or
`datasets.distributed.split_dataset_by_node(dataset, rank, world_size)`.

## Source
torch.utils.data.IterableDataset, the example on workers; https://huggingface.co/docs/datasets/use_with_pytorch
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.data import training_loaders
from advisor.rules.source.report import found

RULE = ("SCR103", "stream-not-split")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None or not case.source.averages_gradients:
        return
    for loader in training_loaders(case.source):
        if not loader.whole_stream:
            continue
        yield found(
            case,
            RULE,
            "error",
            loader.stream_begins,
            happens="the dataset is a stream that knows no ranks: each rank, and each of its workers, yields the same "
            "samples",
            remedy="in __iter__: itertools.islice(samples, rank * workers + worker, None, world_size * workers), with "
            "torch.utils.data.get_worker_info(); or datasets.distributed.split_dataset_by_node",
        )
