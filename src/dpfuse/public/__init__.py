"""What may leave the building: committed rows and what is computed from them and from public settings."""

from dpfuse.public.hub import Hub
from dpfuse.public.rows import Published, Row

__all__ = ["Hub", "Published", "Row"]
