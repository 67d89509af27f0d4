"""Many fusion centres as one fleet: shards by a public map, supervised, on this machine or placed by Ray."""

from dpfuse.fleet.reporter import FleetReporter

__all__ = ["FleetReporter"]
