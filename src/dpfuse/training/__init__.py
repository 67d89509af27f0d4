"""From data and a promise to a design."""

from dpfuse.training.designs import train, train_many
from dpfuse.training.devices import use_all_cores
from dpfuse.training.settings import PPO, Architecture, Optimisation

__all__ = ["PPO", "Architecture", "Optimisation", "train", "train_many", "use_all_cores"]
