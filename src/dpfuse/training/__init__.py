"""From data and a promise to a design."""

from dpfuse.training.devices import use_all_cores
from dpfuse.training.settings import Architecture, Optimisation
from dpfuse.training.train import train, train_many

__all__ = ["Architecture", "Optimisation", "train", "train_many", "use_all_cores"]
