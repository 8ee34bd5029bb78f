"""The job that a case describes: its `workload` as options of `advisor recommend`, read through that command's door."""

import argparse
import math
import re
from typing import Any

from advisor.arguments import Parser
from advisor.commands.job import add_job, job_of
from advisor.rules.job import Job, assume_architecture
from advisor.rules.machine import Machine
from advisor.rules.plan import Assumption

USUAL_PARAMS, SMALL_PARAMS = 350e6, 50e6  # where a case tells no size, and where it says `small`
SHARDED_STATES = 2.0  # times one GPU's memory: the states of a model of no told size that people shard
STATES = 16  # bytes per parameter, AdamW
LORA_RANK = 16
SEVERAL = 4  # micro-batches, where a case accumulates `several`
USUAL_TOKENS = 4096  # of a micro-batch, where a case accumulates and tells no micro-batch
LONGEST = 8192  # tokens: what samples of variable length are planned for, since the longest decides
PIXELS = 256  # patches of an image in a vision transformer, and a vocabulary of classes instead of words
CLASSES = 1000

SIZES = (("bert-?large", 340e6), ("bert", 110e6), ("gpt-?2", 124e6), ("vit-?b", 86e6), ("vit-?l", 304e6))
# Words by family; a model that is not here has those that `assume_architecture` gives it.
VOCABULARIES = (
    (r"llama-?\s?3", 128256),
    ("qwen", 151936),
    ("bloom", 250880),
    ("gemma", 256000),
    ("phi-?4", 100352),
    ("bert", 30522),
    ("gpt-?2", 50257),
)
TIED = r"bert|gpt-?2|bloom|gemma"  # embedding and head share one matrix
VISION = r"\bvit\b|vit-|yolo|resnet|convnext|swin|\bclip\b|coca|image"
ENCODER_SEQ = 512  # of BERT and its like, which take no more
OPTIMIZERS = (
    ("8.?bit", "adamw-8bit"),
    ("adafactor", "adafactor"),
    ("muon", "muon"),
    ("momentum", "sgd-momentum"),
    ("sgd", "sgd"),
)


def trains(workload: dict[str, Any]) -> bool:
    """Say whether the case is about training; a loop that generates is no job of ours."""
    return not re.search(
        r"inference|generat|serving", f"{workload.get('method', '')} {workload.get('what', '')}".lower()
    )


def job_of_case(workload: dict[str, Any], machine: Machine) -> tuple[Job, list[Assumption]]:
    """Build the job of a case for its machine, with what had to be assumed."""
    assumed: list[Assumption] = []
    words = options(workload, machine, assumed)
    parser = Parser(prog="case")
    add_job(parser)
    args: argparse.Namespace = parser.parse_args(words)
    args.allow = ()
    job, ours = job_of(args, machine, len(machine.gpus) * machine.nodes)
    shown = Assumption(what="job", value=" ".join(words), why="the words of the case")
    return job, [shown, *assumed, *ours]


def options(workload: dict[str, Any], machine: Machine, assumed: list[Assumption]) -> list[str]:
    """Write the workload as the words that a user would type."""
    arch = str(workload.get("arch", "")).lower()
    params = params_of(workload, machine, assumed)
    usual, seq = assume_architecture(params)
    vision = bool(re.search(VISION, arch))
    seq = _seq(workload, arch, PIXELS if vision else seq)
    words = ["--params", f"{params:.0f}", "--seq", f"{seq}"]
    vocabulary = CLASSES if vision else vocabulary_of(arch)
    layers = re.search(r"(\d+)[ -]layer", arch)
    if vocabulary or layers:
        depth = int(layers[1]) if layers else usual.layers
        matrices = 1 if re.search(TIED, arch) else 2
        hidden = hidden_of(params, depth, matrices * (vocabulary or usual.vocab))
        ffn = 256 * math.ceil(8 * hidden / 3 / 256) if usual.gated_mlp else 4 * hidden
        words += ["--layers", f"{depth}", "--hidden", f"{hidden}", "--ffn", f"{ffn}"]
        words += ["--vocab", f"{vocabulary or usual.vocab}"]
    words += _adapters(str(workload.get("method", "")).lower())
    words += _batch(workload, len(machine.gpus) * machine.nodes, seq, sized=params == _told_params(workload, arch))
    precision = str(workload.get("precision", "")).lower()
    known = next((name for name in ("bf16", "fp16") if name in precision), "fp32" if precision == "fp32" else None)
    words += ["--precision", known] if known else []
    optimizer = str(workload.get("optimizer", "")).lower()
    words += ["--optimizer", next((name for pattern, name in OPTIMIZERS if re.search(pattern, optimizer)), "adamw")]
    return words


def params_of(workload: dict[str, Any], machine: Machine, assumed: list[Assumption]) -> float:
    """Return the parameters: as told, by the model's name, or assumed by what people do with it."""
    arch = str(workload.get("arch", "")).lower()
    told = _told_params(workload, arch)
    if told is not None:
        return told
    used = str(workload.get("strategy_used", "")).lower()
    params = SMALL_PARAMS if "small" in arch else USUAL_PARAMS
    if re.search("fsdp|zero|shard", used):
        params = SHARDED_STATES * (machine.gpus[0].memory or 0) / STATES
    assumed.append(Assumption(what="parameters", value=f"{params:.3g}", why=f"not told; {used or arch or 'no model'}"))
    return params


def _told_params(workload: dict[str, Any], arch: str) -> float | None:
    if isinstance(workload.get("params"), int | float):
        return float(workload["params"])
    size = re.search(r"(\d+(?:\.\d+)?)\s?([bm])(?![a-z0-9])", arch)
    if size:
        return float(size[1]) * (1e9 if size[2] == "b" else 1e6)
    return next((params for pattern, params in SIZES if re.search(pattern, arch)), None)


def vocabulary_of(arch: str) -> int | None:
    """Return the words of a model: as told (`vocab 128k`), or those of its family."""
    told = re.search(r"vocab\w*\s*(?:of\s*)?(\d+)\s*(k?)", arch)
    if told:
        return int(told[1]) * (1000 if told[2] else 1)
    return next((words for pattern, words in VOCABULARIES if re.search(pattern, arch)), None)


def hidden_of(params: float, layers: int, rows: int) -> int:
    """Return the hidden size, a multiple of 64 or 128, that solves 12 L h^2 + rows h = params; `rows` of embeddings."""
    a, b = 12.0 * layers, float(rows)
    step = 128 if params >= 1e9 else 64
    return max(step, step * round((math.sqrt(b * b + 4 * a * params) - b) / (2 * a) / step))


def usual_micro_batch(seq: int) -> int:
    """Return the micro-batch of a case that tells none."""
    return max(1, USUAL_TOKENS // seq)


def _seq(workload: dict[str, Any], arch: str, usual: int) -> int:
    told = workload.get("seq_len", workload.get("seq"))
    if isinstance(told, int):
        return told
    if "variable" in str(told):
        return LONGEST
    return ENCODER_SEQ if "bert" in arch else usual


def _adapters(method: str) -> list[str]:
    if "qlora" in method:
        return ["--lora-rank", f"{LORA_RANK}", "--quantize", "nf4"]
    return ["--lora-rank", f"{LORA_RANK}"] if re.search("lora|peft|adapter|prompt tuning", method) else []


def _batch(workload: dict[str, Any], ranks: int, seq: int, *, sized: bool) -> list[str]:
    """Give what is told of the batch; what is not, the advisor chooses or assumes.

    Where the model's size is not told (`sized`), a number of samples says nothing.
    """
    names = ("micro_batch", "per_gpu_batch", "batch_per_gpu", "per_device_batch")
    micro = next((int(workload[name]) for name in names if isinstance(workload.get(name), int)), None)
    micro = micro if sized else None
    steps = workload.get("grad_accum_steps")
    batch = workload.get("global_batch")
    if steps is not None:
        accumulation = steps if isinstance(steps, int) else SEVERAL
        micro = micro or usual_micro_batch(seq)
        batch = batch or micro * accumulation * ranks
    words = ["--micro-batch", f"{micro}"] if micro else []
    return words + (["--global-batch", f"{batch}"] if isinstance(batch, int) else [])
