"""A relay in the process of the test."""

from __future__ import annotations

import threading
from contextlib import contextmanager

from dpfuse.public.reading import make_reading_app
from dpfuse.remote.relay import Relay


@contextmanager
def following_relay(address, **options):
    """A relay that follows, with its application."""
    relay = Relay(address, **options)
    thread = threading.Thread(target=relay.follow, daemon=True)
    thread.start()
    try:
        assert relay.is_ready.wait(60)
        relay.app = make_reading_app(relay.feed, relay.estimator, relay.clock, by_design=relay.by_design)
        yield relay
    finally:
        relay.is_stopping.set()
        relay.hub.close()
        relay.close()
        thread.join(60)
