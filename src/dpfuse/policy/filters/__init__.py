"""Recurrent filters f: the contract, the package's own, and the table of their names.

A new filter of the package is a file here and a line in `FILTERS`.
"""

from dpfuse.policy.filters.affine import AffineFilter
from dpfuse.policy.filters.base import Readout, RecurrentFilter, read_features
from dpfuse.policy.filters.gru import GRUFilter
from dpfuse.policy.filters.guided import GuidedFilter
from dpfuse.policy.filters.sets import into_set

FILTERS: dict[str, type[RecurrentFilter]] = {
    "gru": GRUFilter,  # learned, from the sensor's own history, as in the paper
    "guided": GuidedFilter,  # the same, with a last layer that follows past releases
    "affine": AffineFilter,  # the measurement itself, mapped from its range to the box; nothing is learned
}

__all__ = [
    "FILTERS",
    "AffineFilter",
    "GRUFilter",
    "GuidedFilter",
    "Readout",
    "RecurrentFilter",
    "into_set",
    "read_features",
]
