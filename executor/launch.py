"""From a plan to the exact command and environment. Nothing is started here: `--dry-run` prints what this returns."""

import json
import os
import re
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from advisor.executor.folder import RunFolder
from advisor.executor.libraries import library_environment
from advisor.executor.script import ScriptFacts
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Machine, Value
from advisor.rules.plan import Plan

WORKER = Path(__file__).parent / "bootstrap" / "worker.py"


class Launch(Value, frozen=True, kw_only=True):
    """A command, and the variables to set and to unset for it."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    unset: tuple[str, ...] = ()
    own_gpu: bool = False  # each rank sees its own GPU alone, as cuda:0

    def environ(self) -> dict[str, str]:
        """Return the whole environment that it is started in."""
        return {name: value for name, value in os.environ.items() if name not in self.unset} | self.environment

    def shell(self) -> str:
        """Spell it as a line for a shell."""
        unset = [word for name in self.unset for word in ("-u", name)]
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return shlex.join([*(["env", *unset] if unset else ["env"]), *variables, *self.argv])


def plan_launch(
    plan: Plan,
    script: str,
    arguments: Sequence[str],
    folder: RunFolder,
    *,
    machine: Machine | None = None,
    facts: ScriptFacts | None = None,
    loss: str = "mean",
    environ: Mapping[str, str] = os.environ,
) -> Launch:
    """Build the torchrun command for a plan on one host.

    `-P` keeps the user's folder off torchrun's own import path, `--` the script's options out of its parser, which
    would refuse `--log` as short for several of its own. A variable of the plan wins over the user's: it is
    there for a reason that holds on this machine. OMP_NUM_THREADS is the user's where it is set, as with torchrun.
    `loss` says of a plain script whether its losses are means or sums over samples.
    """
    launcher = plan.launcher
    options = ["--standalone", f"--nproc-per-node={launcher.nproc_per_node}", "--local-addr=127.0.0.1"]
    options.append(f"--log-dir={folder.logs.absolute() / 'torchrun'}")
    if launcher.numa_binding is not None and launcher.device == "cuda":  # without CUDA torchrun aborts
        options.append(f"--numa-binding={launcher.numa_binding}")
    own_gpu = facts is not None and sees_one_gpu(plan, facts)
    if own_gpu:
        options.append("--virtual-local-rank")
    environment = {"ADVISOR_PLAN": str(folder.plan.absolute())} | visible_devices(
        plan.gpus, plan.launcher.device, machine
    )
    environment |= library_environment(plan, "unknown" if facts is None else facts.kind)
    if facts is not None and facts.kind == "plain" and plan.ranks > 1:
        environment |= plain_environment(environ, loss=loss)
    if launcher.threads_per_rank is not None and "OMP_NUM_THREADS" not in environ:
        environment["OMP_NUM_THREADS"] = str(launcher.threads_per_rank)
    if "NCCL_DEBUG" in plan.env and "NCCL_DEBUG_FILE" not in environ:
        # NCCL would print its version, and warnings, into the script's stdout.
        environment["NCCL_DEBUG_FILE"] = str(folder.logs.absolute() / "nccl.%h.%p")
    return Launch(
        argv=(sys.executable, "-P", "-m", "torch.distributed.run", *options, "--", str(WORKER), script, *arguments),
        environment=environment | plan.env,
        unset=tuple(sorted(name for name in environ if name.startswith("PET_"))),  # torchrun's options by another way
        own_gpu=own_gpu,
    )


def plain_environment(environ: Mapping[str, str] = os.environ, **given: object) -> dict[str, str]:
    """Return what has the ranks of a plain script train together; `given` adds to how.

    All draw the same random numbers, anew in each run, unless the script sets a seed. Sets of words, too, must have one
    order: a script may number a vocabulary by it.
    """
    seed = secrets.randbelow(2**32)
    hashes = {} if "PYTHONHASHSEED" in environ else {"PYTHONHASHSEED": str(seed)}
    return {"ADVISOR_PLAIN": json.dumps({"seed": seed, **given})} | hashes


def sees_one_gpu(plan: Plan, facts: ScriptFacts) -> bool:
    """Say whether each rank is shown its own GPU alone, as cuda:0: the script would put all ranks on the first."""
    takes_first = facts.first_gpu is not None or facts.kind == "plain"
    return takes_first and plan.launcher.device == "cuda" and plan.ranks > 1


def visible_devices(gpus: Sequence[str], device: Literal["cuda", "cpu"], machine: Machine | None) -> dict[str, str]:
    """Show the processes these GPUs only, by UUID where the machine tells it, else by number in PCI order."""
    if device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}
    if machine is not None:
        uuids = [machine.gpu(gpu).uuid for gpu in gpus]
        if all(uuids):
            return {"CUDA_VISIBLE_DEVICES": ",".join(uuid for uuid in uuids if uuid)}
        numbers = [str(machine.gpu(gpu).index) for gpu in gpus]
    else:
        numbers = [_number(gpu) for gpu in gpus]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(numbers)}


def _number(gpu: str) -> str:
    match = re.fullmatch(r"GPU(\d+)", gpu)
    if match is None:
        raise AdvisorError(
            f"can't tell which device {gpu} is", 'name the GPUs of the plan "GPU0", "GPU1", as nvidia-smi counts'
        )
    return match[1]
