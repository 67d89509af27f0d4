"""The live page: what was released, what it cost and what is promised, for anybody who cares to look."""

from dpfuse.runtime.page.feed import Feed
from dpfuse.runtime.page.router import page_router

__all__ = ["Feed", "page_router"]
