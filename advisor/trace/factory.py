"""Build what `--model` names: `module:factory`, or a Hugging Face config.json."""

import importlib.util
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Assumption
from advisor.trace.fake import fakes, made_fake, without_init
from advisor.trace.feed import Feed, own_loss, usual_feed
from advisor.trace.step import FALL_BACK, Batch, Loss

OURS = str(Path(__file__).parent)
EXAMPLE = "give it as module:factory, for example --model torchvision.models:resnet50"
LONGEST = 300  # characters of another's error message


class Subject(NamedTuple):
    """What is to be traced."""

    make: Callable[[], nn.Module]
    batch: Batch
    loss: Loss
    seq: int | None  # tokens of a sample; None for models of something else
    assumptions: tuple[Assumption, ...]


def subject(name: str, *, seq: int | None = None, shape: tuple[int, ...] | None = None) -> Subject:
    """Find and build the model that `name` means, and what to feed it with.

    seq: tokens of a sample; shape: of one sample of floats. Raises AdvisorError where the model can't be built or fed.
    """
    config = name.endswith(".json") or Path(name).is_dir()
    _spare_torchvision()
    with without_init():
        make = _config(name) if config else _factory(name)
    with fakes() as mode:
        try:
            found = make()
        except (Exception, SystemExit) as error:
            raise AdvisorError(
                f"{name} could not be built: {told(error)}", "a factory must need no arguments, no GPU and no data"
            ) from error
        model, *given = found if isinstance(found, tuple | list) else (found,)
        if not isinstance(model, nn.Module) or len(given) > 2 or not all(map(callable, given)):
            raise AdvisorError(
                f"{name} gave {_kinds(found)}, not a torch.nn.Module",
                "name a class, or a function that returns a model, or (model, batch), or (model, batch, loss)",
            )
        model, taken_off = _plain(model)
        model = made_fake(model, mode).train()
        loss = given[1] if len(given) > 1 else own_loss
        feed = Feed(given[0], loss, seq) if given else usual_feed(model, name, seq=seq, shape=shape)
    return Subject(lambda: model, feed.batch, feed.loss, feed.seq, (*taken_off, *feed.assumptions))


def told(error: BaseException) -> str:
    """Say in one line what another's code raised, and where in it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(OURS)]
    library = str(Path(torch.__file__).parent)
    own = [frame for frame in frames if not frame.filename.startswith((library, "<frozen"))]
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}: " if own else ""
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{place}{type(error).__name__}: {text}"[:LONGEST].removesuffix(": ")


def _factory(name: str) -> Callable[[], Any]:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise AdvisorError(f"{name!r} names no factory", EXAMPLE)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        hint = "run from the folder that holds it" if error.name == module_name.partition(".")[0] else "install it"
        raise AdvisorError(f"no module {error.name} was found for {name}", hint) from error
    except (Exception, SystemExit) as error:
        raise AdvisorError(
            f"{module_name} can't be imported: {told(error)}",
            'a training script must start under `if __name__ == "__main__":` only',
        ) from error
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise AdvisorError(f"{module_name} has no {attribute}", EXAMPLE)
    if isinstance(found, nn.Module):
        return lambda: found
    if not callable(found):
        raise AdvisorError(f"{name} is a {type(found).__name__}, not a factory", EXAMPLE)
    return found  # type: ignore[no-any-return]


def _spare_torchvision() -> None:
    """Let torchvision be imported where its compiled operators don't load: models are traced without them.

    So it is with PyPI's wheels beside a build of torch for CPUs, and transformers imports torchvision too.
    """
    spec = importlib.util.find_spec("torchvision")
    folders = [] if spec is None else spec.submodule_search_locations or []
    try:
        for library in (path for folder in folders for path in Path(folder).glob("_C.*")):
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except OSError:
        name = "torchvision._meta_registrations"
        sys.modules.setdefault(name, ModuleType(name))


def _config(name: str) -> Callable[[], Any]:
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    try:
        values = json.loads(path.read_bytes())
        import transformers

        config = transformers.AutoConfig.for_model(**values)
    except ImportError as error:
        raise AdvisorError(
            "a config.json is traced with transformers, which is not installed", "pip install transformers"
        ) from error
    except OSError as error:
        raise AdvisorError(f"can't read {path}: {error.strerror}", "give the config.json of a model") from error
    except Exception as error:
        raise AdvisorError(
            f"{path} describes no model that transformers {transformers.__version__} has: {told(error)}",
            "give --model a factory that builds it",
        ) from error
    kinds = [getattr(transformers, kind, None) for kind in values.get("architectures") or ()]
    decoder: Any = transformers.AutoModelForCausalLM
    return lambda: next(filter(None, kinds), decoder.from_config)(config)


def _plain(model: nn.Module) -> tuple[nn.Module, list[Assumption]]:
    """Take off what compiles or distributes a model: it is traced as it runs eagerly on one GPU."""
    removed: list[str] = []
    while True:
        inner = getattr(model, "_orig_mod", None)  # of torch.compile
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            break
        removed.append("torch.compile" if hasattr(model, "_orig_mod") else type(model).__name__)
        model = inner
    for module in model.modules():
        if module._compiled_call_impl is not None:
            module._compiled_call_impl = None
            removed.append("torch.compile")
    return model, [
        Assumption(what="model", value=f"without {kind}", why="what a model runs eagerly on one GPU is traced")
        for kind in dict.fromkeys(removed)
    ]


def _kinds(found: Any) -> str:
    if isinstance(found, tuple | list):
        return f"({', '.join(type(part).__name__ for part in found)})"
    return type(found).__name__


def refusal(name: str, error: BaseException) -> AdvisorError:
    """Say why a model could not be run on fake tensors."""
    if type(error).__name__ in _NEEDS_VALUES:
        where = told(error).partition(": ")[0]
        return AdvisorError(f"what {name} runs depends on values ({where}), which a trace has not", FALL_BACK)
    return AdvisorError(
        f"{name} could not be run: {told(error)}",
        "return (model, batch) from the factory, where batch(samples) gives what it takes; else " + FALL_BACK,
    )


# Of torch._subclasses.fake_tensor and torch.fx.experimental.symbolic_shapes.
_NEEDS_VALUES = {"DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode"}
