"""A freeway simulated by SUMO: several lanes, trucks, lane changes, and a lane that ends."""

from dpfuse.systems.sumo.recording import simulate
from dpfuse.systems.sumo.road import SumoFreeway

__all__ = ["SumoFreeway", "simulate"]
