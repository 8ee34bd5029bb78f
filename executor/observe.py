"""The model and the batch that a run turned out to have, from the record of a rank."""

from advisor.executor.records import RankRecord
from advisor.rules.observed import Observed


def observed_of(record: RankRecord) -> Observed | None:
    """Return the model and batch that a rank saw in its first step."""
    model = record.model
    if model is None or not model.forwards:
        return None
    return Observed(
        parameters=model.parameters,
        trainable=model.trainable,
        inputs=model.inputs,
        autocast=model.autocast,
        forwards_per_step=model.forwards,
    )
