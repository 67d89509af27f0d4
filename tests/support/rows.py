"""Rows made by hand."""

from __future__ import annotations

from dpfuse.public.rows import Row


def make_row(stream="main", step=1, release=(3, -4), weight=5, cost=7, left=9):
    content = b"".join(number.to_bytes(8, "little", signed=True) for number in release)
    return Row.after(b"\0" * 32, stream, step, content, weight, cost, left)
