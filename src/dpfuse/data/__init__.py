"""Published recordings of real vehicles: read in any of their layouts, and turned into `Trajectories`."""

from dpfuse.data.recording import Recording, read, us101

__all__ = ["Recording", "read", "us101"]
