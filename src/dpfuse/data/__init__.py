"""Published recordings of real vehicles, read in each of their layouts and turned into `Trajectories`."""

from dpfuse.data.recording import Recording, read, us101
from dpfuse.data.summary import Period, periods

__all__ = ["Period", "Recording", "periods", "read", "us101"]
