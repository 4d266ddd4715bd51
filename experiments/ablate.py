"""Which settings pay: change one at a time, on the digits experiment, over several seeds.

    python experiments/ablate.py --seeds 0 1 2 --out runs/ablation --write

Runs are kept under --out and not repeated; an interrupted ablation goes on where it stopped. --write puts the table
into experiments/RESULTS.md between its markers.
"""

import argparse
import math
import statistics
from pathlib import Path

from rich.console import Console

from ratemesh.experiment.config import load_config
from ratemesh.experiment.experiment import resume, run

HERE = Path(__file__).parent
VARIANTS: dict[str, list[str]] = {
    "default": [],
    "coupling constant (from round 1)": ["method.coupling.schedule=constant"],
    "coupling ramped over 16 rounds": ["method.coupling.schedule=ramp", "method.coupling.ramp=16"],
    "γ = 1, ρ = 0.1": ["method.gamma=1", "method.rho=0.1"],
    "γ = 10, ρ = 1": ["method.gamma=10", "method.rho=1"],
    "objective_scale = paper": ["method.objective_scale=paper"],
    "in-batch statistics (β = 1)": ["method.running.beta=1"],
    "H refreshed every 3 batches": ["method.running.refresh=3"],
    "gauge off": ["method.gauge.enabled=false"],
    "gauge without class means": ["method.gauge.means=0"],
    "cross-entropy warm start, 10 epochs": ["method.warm_start.epochs=10"],
    "everything off (paper-stable)": ["preset=paper-stable", "local.batch_size=1000"],
}
COLUMNS = {
    "acc_average": "averaged",
    "acc_energy": "fused",
    "acc_node": "one node",
    "disagreement": "disagreement",
    "overlap": "overlap",
    "rank_min": "lowest rank",
    "rank_max": "highest rank",
    "reduction": "ΔR pooled",
}
BEGIN, END = "<!-- ablation -->", "<!-- /ablation -->"


def measure(name: str, overrides: list[str], seed: int, out: Path) -> dict[str, float]:
    """Run one variant with one seed, or read it if it is there."""
    folder = out / f"{list(VARIANTS).index(name):02d}-{seed}"
    config = load_config(HERE / "digits.toml", [*overrides, f"seed={seed}"])
    if (folder / "config.toml").exists():
        return resume(folder).metrics
    return run(config, folder).metrics


def cell(key: str, values: list[float]) -> str:
    """Return the mean over the seeds, ± their standard deviation where there are several."""
    if not all(isinstance(v, float) and math.isfinite(v) for v in values):
        return "–"
    factor, digits = (100, 1) if key.startswith("acc") else (1, 1 if key.startswith(("rank", "red")) else 3)
    spread = f" ± {factor * statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{factor * statistics.mean(values):.{digits}f}{spread}"


def main() -> None:
    """Measure all variants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--write", action="store_true", help="put the table into experiments/RESULTS.md")
    options = parser.parse_args()
    lines = ["| | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, overrides in VARIANTS.items():
        results = [measure(name, overrides, seed, options.out) for seed in options.seeds]
        lines.append(f"| {name} | " + " | ".join(cell(key, [r[key] for r in results]) for key in COLUMNS) + " |")
        Console().print(lines[-1], markup=False, soft_wrap=True)
    if options.write:
        path = HERE / "RESULTS.md"
        before, _, rest = path.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        path.write_text(before + "\n".join([BEGIN, "", *lines, "", END]) + after)


if __name__ == "__main__":
    main()
