"""What each node holds."""

from ratemesh.data.datasets import DATASETS, Dataset, DatasetSpec
from ratemesh.data.partition import PARTITIONS, is_partition, partition

__all__ = ["DATASETS", "PARTITIONS", "Dataset", "DatasetSpec", "is_partition", "partition"]
