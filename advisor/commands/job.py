"""From `--params` or explicit sizes to a `Job`, with every assumption listed."""

import argparse
import math

from advisor.arguments import count
from advisor.commands.hf_config import read_config
from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.device import supports_bf16
from advisor.rules.errors import AdvisorError
from advisor.rules.job import Architecture, Job, assume_architecture, check_job, count_params, lora_params
from advisor.rules.machine import Machine
from advisor.rules.plan import Assumption
from advisor.rules.profile import Precision

DEFAULT_TOKENS = (
    2**18
)  # per optimizer step, where no batch is given: 0.25M, as small pre-training and fine-tuning runs use
DEFAULT_SEQ = 2048
DEFAULT_VOCAB = 32000
IMAGE_TOKENS = 256  # a sample without tokens counts as so many where no batch is given
SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe what is trained."""
    group = parser.add_argument_group("the model")
    group.add_argument(
        "--params", type=count, metavar="N", help="parameters: 13e9, 13b, 350M; a usual shape is assumed"
    )
    group.add_argument("--config", metavar="FILE", help="a Hugging Face config.json of a decoder")
    group.add_argument(
        "--model",
        metavar="SPEC",
        help="a model to trace, no GPU needed: module:factory, for example torchvision.models:resnet50, or a "
        "config.json (with transformers)",
    )
    group.add_argument("--input", type=_shape, metavar="SHAPE", help="of one sample of numbers, for --model: 3x224x224")
    group.add_argument(
        "--layers", type=count, metavar="N", help="blocks; with --hidden instead of, or beside, --params"
    )
    group.add_argument("--hidden", type=count, metavar="N", help="hidden size")
    group.add_argument("--heads", type=count, metavar="N", help="attention heads (default: of 128 or 64)")
    group.add_argument("--kv-heads", type=count, metavar="N", help="key and value heads (default: as many as heads)")
    group.add_argument("--ffn", type=count, metavar="N", help="width of the MLP (default: 4 x hidden; two matrices)")
    group.add_argument("--vocab", type=count, metavar="N", help="words")
    group = parser.add_argument_group("the training")
    group.add_argument("--seq", type=count, metavar="N", help="tokens per sample")
    group.add_argument("--global-batch", type=count, metavar="N", help="samples per optimizer step over all GPUs")
    group.add_argument("--micro-batch", type=count, metavar="N", help="samples per GPU and forward pass")
    group.add_argument("--precision", choices=("bf16", "fp16", "fp32"), default="bf16", help="default: bf16")
    group.add_argument(
        "--optimizer",
        choices=("adamw", "adamw-8bit", "adafactor", "sgd", "sgd-momentum", "muon"),
        default="adamw",
        help="default: adamw",
    )
    adapters = group.add_mutually_exclusive_group()
    adapters.add_argument(
        "--trainable-params", type=count, metavar="N", help="trained, where part of the model is frozen"
    )
    adapters.add_argument(
        "--lora-rank", type=count, metavar="N", help="train LoRA adapters of this rank on all matrices"
    )
    group.add_argument("--quantize", choices=("nf4",), help="storage of the frozen base")


def job_of(args: argparse.Namespace, machine: Machine, ranks: int) -> tuple[Job, tuple[Assumption, ...]]:
    """Build the job for a machine of `ranks` GPUs. Raises AdvisorError where sizes are missing or make no sense."""
    if args.model:
        return _traced(args, machine, ranks)
    assumptions: list[Assumption] = []
    arch, seq = _architecture(args, assumptions)
    params = args.params or count_params(arch, seq)
    trainable = args.trainable_params or (lora_params(arch, args.lora_rank) if args.lora_rank else params)
    if args.quantize and trainable == params:
        raise AdvisorError(
            f"--quantize {args.quantize} keeps the base frozen, but all parameters are trained", "add --lora-rank 16"
        )
    batch = _global_batch(args, seq, ranks, assumptions)
    job = Job(
        params=params,
        trainable_params=trainable,
        architecture=arch,
        seq=seq,
        global_batch=batch,
        micro_batch=args.micro_batch,
        precision=args.precision,
        optimizer=args.optimizer,
        quantize=args.quantize,
        allow=args.allow,
    )
    return check_job(job), tuple(assumptions)


def _traced(args: argparse.Namespace, machine: Machine, ranks: int) -> tuple[Job, tuple[Assumption, ...]]:
    """Trace the model that `--model` names, in the precisions that plans may use."""
    from advisor.commands.model import reply_of
    from advisor.trace.messages import Request

    sizes = ("params", "config", "lora_rank", "trainable_params", "quantize", *SIZES)
    given = [_option(name) for name in sizes if getattr(args, name) is not None]
    if given:
        raise AdvisorError(f"--model and {', '.join(given)} both say what is trained", "leave one of them out")
    wanted = _precisions(args.precision, machine)
    reply = reply_of(Request(model=args.model, precisions=wanted, seq=args.seq, shape=args.input))
    assumptions = list(reply.assumptions)
    first = reply.profiles[0]
    seq = first.seq or 1
    job = Job(
        params=first.params,
        trainable_params=first.trainable,
        architecture=None,
        seq=seq,
        global_batch=_global_batch(args, first.seq or IMAGE_TOKENS, ranks, assumptions),
        micro_batch=args.micro_batch,
        precision=args.precision,
        optimizer=args.optimizer,
        allow=args.allow,
        profiles=reply.profiles,
    )
    return check_job(job), tuple(assumptions)


def _precisions(wanted: str, machine: Machine) -> tuple[Precision, ...]:
    """Return the precisions that plans of a job may have on a machine: bf16 is had by autocast or by FSDP."""
    if wanted == "fp32" or any(map(is_cpu, machine.gpus)):
        return ("fp32",)
    if wanted == "fp16" or not all(map(supports_bf16, machine.gpus)):
        return ("fp16-autocast",)
    return ("bf16-autocast", "bf16-params")


def _shape(text: str) -> tuple[int, ...]:
    """Read the shape of one sample: 3x224x224, 784."""
    sides = text.lower().split("x")
    if not all(side.isdecimal() and 1 <= int(side) <= 10**9 for side in sides):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 3x224x224")
    return tuple(map(int, sides))


def _global_batch(args: argparse.Namespace, seq: int, ranks: int, assumptions: list[Assumption]) -> int:
    if args.global_batch is not None:
        return int(args.global_batch)
    batch = _default_batch(seq, ranks, args.micro_batch or 1)
    assumptions.append(Assumption(what="global batch", value=batch, why="--global-batch was not given"))
    return batch


def _architecture(args: argparse.Namespace, assumptions: list[Assumption]) -> tuple[Architecture, int]:
    given = {name: getattr(args, name) for name in SIZES if getattr(args, name) is not None}
    if args.config:
        return _configured(args, given, assumptions)
    if args.layers and args.hidden:
        return _explicit(args, assumptions)
    if args.params is None:
        raise AdvisorError(
            "the size of the model is not given",
            "add --params 13e9, --config config.json, --model module:factory, or --layers N --hidden N",
        )
    arch, seq = assume_architecture(args.params)
    if given:
        missing = "--hidden" if args.layers else "--layers"
        raise AdvisorError(
            f"{', '.join(_option(n) for n in given)} without --layers and --hidden", f"add {missing} too"
        )
    shape = f"{arch.layers} blocks of {arch.hidden}, {arch.heads} heads, MLP {arch.ffn}, {arch.vocab} words"
    kind = "Llama-like" if arch.rmsnorm else "GPT-like"
    assumptions.append(Assumption(what="architecture", value=f"{kind}: {shape}", why="only --params was given"))
    if args.seq is None:
        assumptions.append(Assumption(what="tokens per sample", value=seq, why="--seq was not given"))
    return arch, args.seq or seq


def _configured(
    args: argparse.Namespace, given: dict[str, int], assumptions: list[Assumption]
) -> tuple[Architecture, int]:
    """Take the architecture from a config file; a size given beside it would leave open which one holds."""
    if given:
        options = ", ".join(_option(name) for name in given)
        raise AdvisorError(f"--config and {options} both give the architecture", "leave one of them out")
    arch, longest = read_config(args.config)
    if args.seq is not None:
        return arch, args.seq
    seq = min(longest or DEFAULT_SEQ, DEFAULT_SEQ)
    assumptions.append(Assumption(what="tokens per sample", value=seq, why="--seq was not given"))
    return arch, seq


def _explicit(args: argparse.Namespace, assumptions: list[Assumption]) -> tuple[Architecture, int]:
    """Build the architecture from explicit sizes: three MLP matrices where the given width is no multiple of hidden."""
    heads = args.heads or _usual_heads(args.hidden)
    ffn = args.ffn or 4 * args.hidden
    gated = ffn != 4 * args.hidden
    defaults = {
        "--heads": (args.heads, heads),
        "--ffn": (args.ffn, ffn),
        "--vocab": (args.vocab, DEFAULT_VOCAB),
        "--seq": (args.seq, DEFAULT_SEQ),
    }
    for option, (value, usual) in defaults.items():
        if value is None:
            assumptions.append(Assumption(what=option, value=usual, why=f"{option} was not given"))
    kind = "Llama-like (RMSNorm, three MLP matrices)" if gated else "GPT-like (LayerNorm, two MLP matrices)"
    assumptions.append(Assumption(what="blocks", value=kind, why=f"an MLP of {ffn} on a hidden size of {args.hidden}"))
    arch = Architecture(
        layers=args.layers,
        hidden=args.hidden,
        heads=heads,
        kv_heads=args.kv_heads or heads,
        ffn=ffn,
        vocab=args.vocab or DEFAULT_VOCAB,
        gated_mlp=gated,
        rmsnorm=gated,
        learned_positions=not gated,
    )
    return arch, args.seq or DEFAULT_SEQ


def _usual_heads(hidden: int) -> int:
    for size in (128, 64):
        if hidden % size == 0 and hidden > 8 * size:
            return hidden // size
    return max(1, hidden // 64) if hidden % 64 == 0 else 1


def _default_batch(seq: int, ranks: int, micro_batch: int) -> int:
    """Return about `DEFAULT_TOKENS` tokens as a number of samples that all ranks can share evenly."""
    unit = ranks * micro_batch
    doublings = round(math.log2(max(1.0, DEFAULT_TOKENS / seq / unit)))
    return unit << doublings


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
