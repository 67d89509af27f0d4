"""What may leave the centre: committed rows, and what follows from them and from public settings."""

from dpfuse.public.hub import Hub
from dpfuse.public.rows import Published, Row

__all__ = ["Hub", "Published", "Row"]
