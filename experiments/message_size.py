"""What each codec costs in accuracy and saves in bytes: MNIST, the same nodes, seeds and rounds for all.

    ratemesh data get mnist
    python experiments/message_size.py --out runs/codecs --write

Bytes are those of one message between two nodes, as a part of K·d² float32 numbers, averaged over all messages of the
run. D-SGD sends the weights of the same encoder and its head. Runs are kept under --out and not repeated; --write puts
the table into experiments/RESULTS.md and the figure beside it.
"""

import argparse
from pathlib import Path

from matplotlib.figure import Figure
from results import write_table
from rich.console import Console

from ratemesh.experiment.config import load_config
from ratemesh.experiment.experiment import run
from ratemesh.experiment.storage import read_json

HERE = Path(__file__).parent
SHORT = ["rounds=12", "data.train_limit=20000", "output.evaluate_every=0"]
CODECS = {
    "packed": "packed",
    "half": "half",
    "int8": "int8",
    "lowrank, rank 16, half": '{name="lowrank", rank=16, inner="half"}',
    "lowrank, rank 12, int8": '{name="lowrank", rank=12, inner="int8"}',
    "lowrank, 95 % of the energy, int8": '{name="lowrank", energy=0.95, inner="int8"}',
    "delta of int8": '{name="delta", inner="int8"}',
    "delta of lowrank, rank 4, int8": '{name="delta", inner={name="lowrank", rank=4, inner="int8"}}',
}
ROWS = {name: [f"method.codec={codec}"] for name, codec in CODECS.items()}
ROWS["D-SGD (weights)"] = ["method={name='dsgd'}", "rounds=14"]  # two epochs more: Algorithm 1 has a warm start


def measure(name: str, out: Path) -> dict[str, float]:
    """Run a row unless it is there; return its metrics with the part of dense messages that it sent."""
    folder = out / name.replace(",", "").replace("%", "percent").replace(" ", "-")
    if not (folder / "metrics.json").is_file():
        run(load_config(HERE / "mnist-iid-small.toml", [*SHORT, *ROWS[name]]), folder)
    metrics = read_json(folder / "metrics.json")
    config = load_config(folder / "config.toml", [])
    messages = 2 * len(config.graph.build(config.seed).edges) * config.rounds
    dense = 4 * 10 * config.d**2
    return {**metrics, "part": metrics["bytes_total"] / messages / dense}


def draw(rows: dict[str, dict[str, float]], path: Path) -> None:
    """Draw accuracy and disagreement against bytes."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, row in rows.items():
        left.plot(100 * row["part"], 100 * row["acc_average"], "o", label=name)
        if "D-SGD" not in name:  # its nodes share no space that could disagree
            right.plot(100 * row["part"], row["disagreement"], "o", label=name)
    for axes, words in ((left, "averaged accuracy, %"), (right, "disagreement")):
        axes.set(xscale="log", xlabel="bytes of a message, % of K·d² float32", ylabel=words)
        axes.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run all rows, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/codecs"))
    parser.add_argument("--write", action="store_true", help="put table and figure into experiments/")
    options = parser.parse_args()
    lines = ["| | of dense K·d² | averaged | fused | one node | disagreement | sent |", "|---" * 7 + "|"]
    rows = {}
    for name in ROWS:
        row = rows[name] = measure(name, options.out)
        accuracies = " | ".join(f"{100 * row[key]:.2f} %" for key in ("acc_average", "acc_energy", "acc_node"))
        apart = "–" if "D-SGD" in name else f"{row['disagreement']:.3f}"
        lines.append(
            f"| {name} | {100 * row['part']:.1f} % | {accuracies} | {apart} | {row['bytes_total'] / 1e6:.1f} MB |"
        )
        Console().print(lines[-1], markup=False, soft_wrap=True)
    draw(rows, options.out / "codecs.png")
    if options.write:
        draw(rows, HERE / "figures" / "codecs.png")
        write_table("codecs", lines)


if __name__ == "__main__":
    main()
