"""What was measured of the machine that a command is about: kept on this one, or saved in the file that names it."""

import argparse

from advisor.commands.recommend import with_devices
from advisor.executor.machine_store import Kept, fresh, keep_links, recall
from advisor.rules.calibration import Calibration
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Machine
from advisor.rules.measurements import calibration_of, device_kind, said_of, with_links
from advisor.rules.plan import Assumption

LIMIT = 120.0  # seconds, for all rounds; two GPUs take a few


def kept_of(args: argparse.Namespace, machine: Machine) -> Kept:
    """Return what was measured of the machine, by its file, or by the store where it is this one."""
    if args.machine is None:
        return recall(machine)
    from advisor.probe.load import load_measured

    return Kept(measurements=load_measured(args.machine))


def seen_by(kept: Kept, machine: Machine) -> Machine:
    """Return the machine with the devices that were measured: CPU processes where it has no GPU."""
    groups = kept.measurements.links.groups if kept.measurements and kept.measurements.links else ()
    return with_devices(machine, max(len(group.gpus) for group in groups)) if groups else machine


def calibration_for(args: argparse.Namespace, machine: Machine) -> tuple[Calibration, tuple[Assumption, ...]]:
    """Return what was measured of the machine, whose devices `machine` lists, and what that means for predictions."""
    kept = kept_of(args, machine)
    calibration = calibration_of(kept.measurements, device_kind(machine, machine.gpus[0].id))
    notes = (Assumption(what="measurements", value="none used", why=note) for note in kept.notes)
    return calibration, (*said_of(kept.measurements, calibration), *notes)


def measure(args: argparse.Namespace, machine: Machine) -> Kept:
    """Measure this machine's links now and keep them. Raises AdvisorError where there is nothing to measure with."""
    if args.machine is not None:
        raise AdvisorError("--measure measures this machine, and --machine describes another", "leave one of them out")
    if machine.software.torch is None:
        raise AdvisorError("links are measured with torch, which is not installed here", "pip install torch")
    if not machine.gpus and args.gpus is None:
        hint = "to measure CPU processes with gloo: advisor probe --measure --gpus 2"
        raise AdvisorError("this machine has no GPU whose links could be measured", hint)
    from advisor.executor.links import measure_here

    devices = with_devices(machine, args.gpus)
    if args.gpus is not None and args.gpus > len(devices.gpus):
        hint = f"give --gpus {len(devices.gpus)} or fewer, or leave it out"
        raise AdvisorError(f"--gpus {args.gpus}, but this machine has {len(devices.gpus)}", hint)
    links = measure_here(devices, tuple(gpu.id for gpu in devices.gpus[: args.gpus]), LIMIT)
    if not links.groups and links.host_copies is None:
        why = "; ".join(f"{one.what}: {one.why}" for one in links.failed) or "there is one CPU process only"
        raise AdvisorError(f"nothing could be measured: {why}", "read what NCCL says with: NCCL_DEBUG=INFO")
    line = keep_links(machine, links)
    kept = recall(machine)
    if line is None and kept.measurements is not None:
        return kept
    return Kept(measurements=with_links(fresh(machine), links), notes=(line,) if line else kept.notes)
