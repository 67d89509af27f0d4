"""A real broker, and one with a recorder in the centre's place."""

from __future__ import annotations

import pytest

from support.mqtt import KEYS, SENSORS, bridged, empty_hub
from support.wire import Broker, Recorder


@pytest.fixture
def broker(tmp_path):
    # $SYS is turned on, so that it is the access list that hides it.
    with Broker(tmp_path / "broker", KEYS, SENSORS, lambda text: text.replace("sys_interval 0", "sys_interval 1")) as b:
        yield b


@pytest.fixture
def recorded_mqtt(broker):
    """A recorder in the centre's place, bridged to the broker."""
    centre = Recorder()
    with bridged(broker, centre, empty_hub()):
        yield centre
