"""Predicted against measured memory and step time: python benchmarks/accuracy.py FILE...

From probed facts alone, and after calibration on the files' own steps without communication and collectives. Formats:
benchmarks/README.md. The last line is a JSON object; errors are absolute percentages.
"""

import json
import sys
from collections.abc import Sequence

from steps import Row, calibration_of, read

from advisor.rules.plan import Predicted

SAFE = 0.95  # of what was measured: a smaller prediction is unsafe


class Errors:
    """Signed errors of one row, in percent; None where the row has no such measurement."""

    def __init__(self, row: Row, probed: Predicted, calibrated: Predicted) -> None:
        total = probed.memory.total + row.own_context
        self.memory = None if row.used is None else 100 * (total / row.used - 1)
        allocated = probed.memory.total - probed.memory.context
        self.allocated = None if row.allocated is None else 100 * (allocated / row.allocated - 1)
        self.probed = None if row.seconds is None else 100 * (probed.step_seconds / row.seconds - 1)
        # a row without communication was the calibration itself
        self.calibrated = (
            None if row.seconds is None or row.floor else 100 * (calibrated.step_seconds / row.seconds - 1)
        )
        out_of_memory = row.seconds is None
        self.unsafe = out_of_memory and probed.memory.fits
        self.unsafe |= row.used is not None and not out_of_memory and total < SAFE * row.used
        self.inside = within(row, probed)
        self.inside_calibrated = within(row, calibrated)


def within(row: Row, predicted: Predicted) -> bool:
    """Say whether a measured step lies in the predicted range."""
    low, high = predicted.step_seconds_range
    return row.seconds is None or low <= row.seconds <= high


def quantile(errors: Sequence[float], share: float) -> float | None:
    """Return the smallest absolute error that so many of the errors do not exceed."""
    sizes = sorted(map(abs, errors))
    return round(sizes[min(len(sizes) - 1, int(share * len(sizes)))], 1) if sizes else None


def percent(error: float | None) -> str:
    return f"{error:+6.0f}%" if error is not None else f"{'-':>7}"


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python benchmarks/accuracy.py FILE...")
    rows, collectives = read(sys.argv[1:])
    print(f"{'':56}{'memory GB':>15}{'':7}{'step ms':>17}{'probed':>8}{'calibrated':>12}")
    found: list[Errors] = []
    for row in rows:
        probed = row.costs()
        calibrated = row.costs(calibration_of(row, rows, collectives))
        errors = Errors(row, probed, calibrated)
        found.append(errors)
        used = f"{(probed.memory.total + row.own_context) / 1e9:6.1f} /{row.used / 1e9:6.1f}" if row.used else ""
        step = f"{probed.step_seconds * 1e3:8.0f} /{row.seconds * 1e3:7.0f}" if row.seconds else "out of memory"
        print(
            f"{row.label[:55]:56}{used:>15}{percent(errors.memory)}{step:>17}"
            f"{percent(errors.probed)}{percent(errors.calibrated):>12}"
        )
    memory = [e.memory for e in found if e.memory is not None]
    probed_errors = [e.probed for e in found if e.probed is not None]
    calibrated_errors = [e.calibrated for e in found if e.calibrated is not None]
    figures = {
        "rows": len(rows),
        "memory_median_pct": quantile(memory, 0.5),
        "memory_p90_pct": quantile(memory, 0.9),
        "unsafe": sum(e.unsafe for e in found),
        "time_probed_median_pct": quantile(probed_errors, 0.5),
        "time_probed_p90_pct": quantile(probed_errors, 0.9),
        "time_calibrated_median_pct": quantile(calibrated_errors, 0.5),
        "time_calibrated_p90_pct": quantile(calibrated_errors, 0.9),
        "inside_range_probed_pct": round(100 * sum(e.inside for e in found) / len(found), 1),
        "inside_range_calibrated_pct": round(100 * sum(e.inside_calibrated for e in found) / len(found), 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
