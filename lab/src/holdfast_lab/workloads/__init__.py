"""The papers' queries, their input data, and what the queries must put out."""

from holdfast_lab.workloads.datasets import DATASETS, Dataset, dataset
from holdfast_lab.workloads.oracle import first_difference, oracle, same_rows
from holdfast_lab.workloads.queries import PAPER_QUERIES, QUERIES, Query, query

__all__ = [
    "DATASETS",
    "PAPER_QUERIES",
    "QUERIES",
    "Dataset",
    "Query",
    "dataset",
    "first_difference",
    "oracle",
    "query",
    "same_rows",
]
