"""What each node holds."""

from ratemesh.data.dataset import Dataset, DatasetSpec
from ratemesh.data.datasets import DATASETS
from ratemesh.data.partition import PartitionSpec, class_counts, is_partition
from ratemesh.data.partitions import PARTITIONS, partition

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Dataset",
    "DatasetSpec",
    "PartitionSpec",
    "class_counts",
    "is_partition",
    "partition",
]
