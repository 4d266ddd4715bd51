"""What each node holds."""

from ratemesh.data.arrays import Npz, Samples
from ratemesh.data.by_label import Labels
from ratemesh.data.dataset import Dataset, DatasetSpec, Digits, Subspaces
from ratemesh.data.intake import Incoming, IntakeSpec
from ratemesh.data.parquet import Parquet
from ratemesh.data.partition import (
    Dirichlet,
    Iid,
    PartitionSpec,
    Quantity,
    Shards,
    Stratified,
    class_counts,
    hold_out,
)
from ratemesh.data.pictures import Folder, Pictures
from ratemesh.data.published import Cifar10, Cifar100, Mnist
from ratemesh.data.tables import Csv, Table
from ratemesh.data.texts import Text, Texts

DATASETS: dict[str, type[DatasetSpec]] = {
    "digits": Digits,
    "subspaces": Subspaces,
    "mnist": Mnist,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "npz": Npz,
    "folder": Folder,
    "parquet": Parquet,
    "csv": Csv,
    "text": Text,
}
"""The data sets that a configuration can name; embedded ones first, so that everything runs offline."""

PARTITIONS: dict[str, type[PartitionSpec]] = {
    "dirichlet": Dirichlet,
    "iid": Iid,
    "labels": Labels,
    "quantity": Quantity,
    "shards": Shards,
    "stratified": Stratified,
}

INTAKES: dict[str, type[IntakeSpec]] = {"samples": Samples, "pictures": Pictures, "table": Table, "text": Texts}
"""How raw samples become what encoders take; a saved mesh names one."""

__all__ = [
    "DATASETS",
    "INTAKES",
    "PARTITIONS",
    "Dataset",
    "DatasetSpec",
    "Incoming",
    "IntakeSpec",
    "PartitionSpec",
    "Samples",
    "class_counts",
    "hold_out",
]
