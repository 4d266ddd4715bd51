"""Table I of the paper, cell by cell, as cited in reports beside our own numbers.

[1] Z. Tian, C. Ben Issaid, M. Bennis, *Semantic-based Distributed Learning for Diverse and Discriminative
Representations*, Table I ("Comparison Among Different Algorithms"). Nothing here was measured by this code.
"""

from dataclasses import dataclass

SOURCE = (
    "Z. Tian, C. Ben Issaid, M. Bennis: Semantic-based Distributed Learning for Diverse and Discriminative "
    "Representations, Table I. Accuracies are means of 5 trials with 95 % confidence intervals; 10 nodes, "
    "Erdős–Rényi graph with p = 0.5, d = 128, 1000 rounds of 5 local epochs for Algorithm 1. "
    "The paper prints MNIST accuracies as fractions; here all are percentages."
)

DOUBT = (
    "This cell contradicts its neighbour: with class means and distances as in the other 17 rows, IIDR is close to "
    "√(2K/(K−1)) · √((1 − WCCR)/WCCR), and these four CIFAR-100 cells are off by a factor of 1.5 to 4.7. No target."
)


@dataclass(frozen=True)
class Cited:
    """A cell cited from the paper: its text in common units, and whether it contradicts the rest of its row."""

    text: str
    doubtful: bool = False


def _row(accuracy: str, cosine: str, wccr: str, iidr: str, cka: str, *, doubt: str = "") -> dict[str, Cited]:
    texts = {"accuracy": f"{accuracy} %", "cosine": cosine, "wccr": wccr, "iidr": iidr, "cka": cka}
    return {column: Cited(text, column == doubt) for column, text in texts.items()}


TABLE: dict[str, dict[str, dict[str, Cited]]] = {
    "mnist": {
        "Algorithm 1": _row("97.62 ± 0.10", "0.07 / 0.07", "0.9941", "0.1159", "0.0245"),
        "CenMCR": _row("98.38 ± 0.12", "0.09 / 0.03", "0.9235", "0.4292", "–"),
        "D-SGD": _row("98.51 ± 0.02", "−0.08 / 0.25", "0.2100", "3.0249", "0.0013"),
        "FedU²": _row("95.60 ± 0.21", "0.29 / 0.13", "0.8224", "0.6939", "0.0060"),
        "FedSimCLR": _row("97.43 ± 0.09", "0.81 / 0.06", "0.6556", "1.0855", "0.0028"),
        "FedU": _row("97.73 ± 0.12", "0.60 / 0.13", "0.6189", "1.1770", "0.0029"),
        "Orchestra": _row("98.13 ± 0.21", "0.91 / 0.05", "0.5556", "1.3454", "0.0013"),
    },
    "cifar10": {
        "Algorithm 1": _row("71.76 ± 0.06", "0.00 / 0.02", "0.9914", "0.1399", "0.0208"),
        "CenMCR": _row("71.08 ± 0.02", "0.00 / 0.01", "0.9153", "0.4541", "–"),
        "D-SGD": _row("68.26 ± 0.10", "−0.11 / 0.09", "0.9044", "0.4848", "0.0018"),
        "FedU²": _row("41.18 ± 0.20", "0.92 / 0.05", "0.9028", "0.4900", "0.0027"),
        "FedSimCLR": _row("49.03 ± 0.41", "0.71 / 0.15", "0.8179", "0.6901", "0.0022"),
        "FedU": _row("68.08 ± 0.21", "0.53 / 0.13", "0.8689", "0.5747", "0.0068"),
        "Orchestra": _row("64.02 ± 0.19", "0.64 / 0.23", "0.5539", "1.3275", "0.0011"),
    },
    "cifar100": {
        "Algorithm 1": _row("27.61 ± 0.16", "0.00 / 0.02", "0.9967", "0.3834", "0.0300", doubt="iidr"),
        "CenMCR": _row("27.84 ± 0.22", "0.01 / 0.03", "0.5915", "0.7728", "–", doubt="iidr"),
        "D-SGD": _row("30.20 ± 0.10", "0.75 / 0.10", "0.9010", "0.1442", "0.0087", doubt="iidr"),
        "FedU²": _row("30.13 ± 0.18", "0.16 / 0.21", "0.8833", "0.5186", "0.0081"),
        "FedSimCLR": _row("28.90 ± 0.21", "0.49 / 0.20", "0.7857", "0.7371", "0.0037"),
        "FedU": _row("31.82 ± 0.20", "0.24 / 0.23", "0.8103", "0.6836", "0.0057"),
        "Orchestra": _row("30.36 ± 0.15", "0.95 / 0.03", "0.5035", "0.8093", "0.0009", doubt="iidr"),
    },
}
"""Data set -> method -> column -> cell, in the paper's order."""


def table_for(dataset: str) -> str | None:
    """Return the key of the table's part for a data set's name; None when the paper has none.

    >>> table_for("CIFAR-10")
    'cifar10'
    """
    key = dataset.lower().replace("-", "").replace("_", "")
    return key if key in TABLE else None
