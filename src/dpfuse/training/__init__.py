"""From data and a guarantee to a design."""

from dpfuse.training.devices import use_all_cores
from dpfuse.training.settings import PPO, Architecture, Optimisation

__all__ = ["PPO", "Architecture", "Optimisation", "use_all_cores"]
