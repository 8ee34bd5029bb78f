"""What trials know of the links before they start: what is kept of this machine, else what is measured now."""

from advisor.executor.console import say
from advisor.executor.forked import Forks
from advisor.executor.links import measure_links
from advisor.executor.machine_store import keep_links, recall
from advisor.rules.calibration import Calibration
from advisor.rules.format import plural, seconds
from advisor.rules.machine import Machine
from advisor.rules.measurements import calibration_of, device_kind

LEAST_SECONDS = 4.0  # two GPUs need as many


def links_known(machine: Machine, gpus: tuple[str, ...], forks: Forks, limit: float) -> Calibration:
    """Return what is kept of the links between these GPUs, or measure and keep it, in so many seconds at most."""
    device = device_kind(machine, gpus[0])
    kept = recall(machine)
    known = calibration_of(kept.measurements, device)
    if len(gpus) == 1 or known.group(gpus, 1, 1):
        return known
    for note in kept.notes:
        say(note)
    if limit < LEAST_SECONDS:
        return known
    links = measure_links(machine, gpus, forks, limit)
    for one in links.failed:
        say(f"links were not measured: {one.what}: {one.why}")
    if not links.groups:
        return known
    say(f"links of {plural(len(links.groups), 'group')} of devices measured in {seconds(links.seconds)}")
    line = keep_links(machine, links)
    if line is not None:
        say(line)
        return Calibration(groups=links.groups, host_copies=links.host_copies)
    return calibration_of(recall(machine).measurements, device)
