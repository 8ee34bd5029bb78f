"""A batch and a loss for a model that came without: from its signature, its configuration and its first layers."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name
from torch import nn

from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Assumption
from advisor.trace.step import Batch, Loss

IMAGE = (3, 224, 224)
SEQ = 1024  # tokens of a sample where neither the command nor the model says
TARGETS = ("labels", "targets", "target")  # what forward calls what it computes its own loss with

# Models of transformers by the end of their names: what their labels are.
_LABELS = {
    "ForSequenceClassification": "class",
    "ForImageClassification": "class",
    "ForTokenClassification": "token class",
}


class Feed(NamedTuple):
    batch: Batch
    loss: Loss
    seq: int | None  # tokens of a sample
    assumptions: tuple[Assumption, ...] = ()


def usual_feed(model: nn.Module, name: str, *, seq: int | None, shape: tuple[int, ...] | None) -> Feed:
    """Guess what a model is trained on. Raises AdvisorError where nothing points to it."""
    if shape is not None:
        return _floats(shape)
    main = getattr(model, "main_input_name", None) if hasattr(model, "config") else None
    if main == "pixel_values":
        return _pixels(model)
    size = _image(model)
    if main is None and size is not None:
        assumption = Assumption(what="sample", value="x".join(map(str, size)), why="--input was not given")
        return _floats(size)._replace(assumptions=(assumption,))
    words = max((m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)), default=None)
    if words is None or main not in {None, "input_ids"}:
        raise AdvisorError(
            f"what {name} takes can't be guessed",
            "give the shape of one sample, such as --input 3x224x224, or return (model, batch) from the factory",
        )
    length = seq or _length(model)
    assumption = Assumption(what="tokens per sample", value=length, why="--seq was not given")
    feed = _labelled(model, words, length) if main else _tokens(model, words, length)
    return feed if seq else feed._replace(assumptions=(assumption,))


def own_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Run a model on a batch as it is given, and make a loss of what it returns."""
    return loss_of(run(model, batch))


def run(model: nn.Module, batch: Any) -> Any:
    """Call a model with a dictionary's entries by name, with those of a tuple in their order."""
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def loss_of(output: Any) -> torch.Tensor:
    """Return the loss in an output, else one over its scores, the first tensor of it."""
    named = output if isinstance(output, dict) else getattr(output, "__dict__", {})
    loss = named.get("loss")
    if isinstance(loss, torch.Tensor):
        return loss.mean()
    leaves = _tensors(output)
    scalars = [leaf for leaf in leaves if leaf.dim() == 0 and leaf.requires_grad]
    if scalars:
        return torch.stack(scalars).sum()  # such as a detector's dictionary of losses
    if not leaves:
        raise AdvisorError(
            f"the model returns a {type(output).__name__}, of which no loss can be made",
            "return (model, batch, loss) from the factory, where loss(model, batch) gives a scalar",
        )
    scores = named.get("logits", leaves[0])
    if scores.dim() == 2:
        return F.cross_entropy(scores, torch.randint(scores.shape[1], scores.shape[:1]))
    return scores.float().sum()  # type: ignore[no-any-return]


def _tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _floats(shape: tuple[int, ...]) -> Feed:
    return Feed(lambda samples: torch.randn(samples, *shape), own_loss, None)


def _image(model: nn.Module) -> tuple[int, ...] | None:
    """Return the shape of an image where the model says it (timm), or where its first convolution takes colours."""
    said = getattr(model, "default_cfg", None)
    if isinstance(said, dict) and "input_size" in said:
        return tuple(said["input_size"])
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    return IMAGE if first is not None and first.in_channels == IMAGE[0] else None


def _pixels(model: nn.Module) -> Feed:
    """Feed a vision model of transformers."""
    config: Any = model.config
    size = getattr(config, "image_size", IMAGE[1])
    height, width = size if isinstance(size, list | tuple) else (size, size)
    shape = (getattr(config, "num_channels", IMAGE[0]), height, width)
    labels = _targets(model)

    def batch(samples: int) -> dict[str, torch.Tensor]:
        given = {"pixel_values": torch.randn(samples, *shape)}
        return given | ({labels: torch.randint(config.num_labels, (samples,))} if labels else {})

    why = "what the model's configuration says"
    return Feed(batch, own_loss, None, (Assumption(what="sample", value="x".join(map(str, shape)), why=why),))


def _length(model: nn.Module) -> int:
    config = getattr(model, "config", None)
    names = ("max_position_embeddings", "n_positions", "block_size", "max_seq_len")
    longest = [size for name in names if isinstance(size := getattr(config, name, None), int) and size > 0]
    return min(SEQ, *longest) if longest else SEQ


def _targets(model: nn.Module) -> str | None:
    known = inspect.signature(model.forward).parameters
    return next((name for name in TARGETS if name in known), None)


def _labelled(model: nn.Module, words: int, length: int) -> Feed:
    """Feed a language model of transformers: token ids and labels."""
    config: Any = model.config
    kind = next((kind for end, kind in _LABELS.items() if type(model).__name__.endswith(end)), "token")
    two = getattr(config, "is_encoder_decoder", False)
    if two and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    labels = _targets(model)

    def batch(samples: int) -> dict[str, torch.Tensor]:
        given = {"input_ids": torch.randint(words, (samples, length))}
        if labels:
            shape = (samples,) if kind == "class" else (samples, length)
            given[labels] = torch.randint(words if kind == "token" else config.num_labels, shape)
        elif two:
            given["decoder_input_ids"] = torch.randint(words, (samples, length))
        return given

    return Feed(batch, own_loss, length)


def _tokens(model: nn.Module, words: int, length: int) -> Feed:
    """Feed any other model with token ids: it predicts the next one, with its own loss where it takes targets."""
    targets = _targets(model)
    loss: Callable[[nn.Module, Any], torch.Tensor] = own_loss if targets else _next_token

    def batch(samples: int) -> Any:
        ids = torch.randint(words, (samples, length + 1))
        first = next(iter(inspect.signature(model.forward).parameters))
        return {first: ids[:, :-1], targets: ids[:, 1:]} if targets else ids

    return Feed(batch, loss, length)


def _next_token(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    output = run(model, batch[:, :-1])
    scores = next(iter(_tensors(output)), None)
    if scores is None or scores.dim() != 3 or scores.shape[1] != batch.shape[1] - 1:
        return loss_of(output)
    return F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
