"""Which machine a command is about: this one, or what `--machine` names."""

import argparse

from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Machine


def machine_of(args: argparse.Namespace) -> Machine:
    """Load the machine that the options name, or probe this one."""
    if args.machine is not None:
        from advisor.probe.load import load_machine

        return load_machine(*args.machine, gpu=args.gpu, gpu_memory=args.gpu_memory)
    if args.gpu or args.gpu_memory:
        raise AdvisorError("--gpu and --gpu-memory describe another machine", "add --machine SOURCE")
    from advisor.probe.live.machine import probe_live

    return probe_live()
