"""A whole centre that is killed, runs out of disk, or finds a changed ledger: no release is lost or drawn twice."""

from __future__ import annotations

import resource
import shutil
import subprocess
import time

import httpx
import numpy as np
import pytest

from dpfuse.ledger import public_rows, verify
from support.live_centre import INTERVAL_S, Sensors, Site, Subscriber, check_received, largest_share
from support.parts import mounted
from support.wire import PATIENCE_S, wait_for, without_skips

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path, tmp_path / "ledger.db").create()


def test_twenty_kills_of_a_centre_lose_and_change_no_release(site):
    """Most of them while it serves, some while it starts; sensors and subscriber run all the time."""
    rng = np.random.default_rng(3)
    with Sensors(site) as sensors, Subscriber(site) as subscriber:
        for kill in range(20):
            with site.start() as centre:
                if kill % 5:
                    centre.wait_until_up()
                time.sleep(rng.uniform(0, 2))
                assert centre.kill() == -9
        before, sent = site.last_step(), sensors.num_sent
        with site.start() as centre:
            centre.wait_until_up()
            wait_for(
                lambda: max(subscriber.received, default=0) > before + 10 and sensors.num_sent > sent
            )  # it goes on
            assert centre.stop() == 0 and without_skips(centre.errors) == ""
    check_received(site, subscriber)
    assert largest_share(site) > 0.05


def test_the_check_of_what_was_published_can_fail(site):
    with Sensors(site), Subscriber(site) as subscriber, site.start() as centre:
        wait_for(lambda: len(subscriber.received) > 5)
        assert centre.stop() == 0
    check_received(site, subscriber)
    step = min(subscriber.received)
    good = subscriber.received[step]
    for wrong in ({"release": [0, 0]}, {"hash": "00"}, {"fusion_weight": 1}):
        subscriber.received[step] = good | wrong
        with pytest.raises(AssertionError):
            check_received(site, subscriber)
    del subscriber.received[step]
    with pytest.raises(AssertionError):
        check_received(site, subscriber)


def refused_at_start(site, message, code):
    """The centre ends by itself with one line of error."""
    with site.start() as centre:
        assert centre.wait() == code
        assert message in centre.errors and centre.errors.count("\n") == 1, centre.errors


def serve_some(site, num_steps=5):
    with Sensors(site), Subscriber(site, site.streams[0]) as subscriber, site.start() as centre:
        wait_for(lambda: len(subscriber.received) >= num_steps)
        assert centre.stop() == 0
    return subscriber


def test_files_that_cannot_grow_stop_the_centre(site):
    """As on a full disk, without a mount: from one moment on no file of this process may grow."""
    with Sensors(site), Subscriber(site) as subscriber:
        with site.start() as centre:
            wait_for(lambda: len(subscriber.received) > 5)
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.prlimit(centre.process.pid, resource.RLIMIT_FSIZE, (8192, most))
            assert centre.wait() == 75
            assert "cannot grow: the disk is full; make room" in centre.errors and centre.errors.count("\n") == 1
        stopped = max(subscriber.received)
        with site.start() as centre:
            wait_for(lambda: max(subscriber.received) > stopped + 5)
            assert centre.stop() == 0
    check_received(site, subscriber)


def test_a_full_disk_stops_the_centre(tmp_path):
    """With room again it continues after the last row that it published."""
    with mounted(tmp_path / "disk", "size=2m") as disk:
        site = Site(tmp_path, disk / "ledger.db").create()
        with Sensors(site), Subscriber(site) as subscriber:
            with site.start() as centre:
                wait_for(lambda: len(subscriber.received) > 5)
                padding = disk / "padding"
                padding.write_bytes(bytes(shutil.disk_usage(disk).free - 16384))
                assert centre.wait() == 75
                assert "the disk is full; make room" in centre.errors and "Traceback" not in centre.errors
            stopped = max(subscriber.received)
            padding.unlink()
            with site.start() as centre:
                wait_for(lambda: max(subscriber.received) > stopped + 5)
                assert centre.stop() == 0
        check_received(site, subscriber)


def test_a_read_only_disk_is_refused(tmp_path):
    with mounted(tmp_path / "disk", "size=2m") as disk:
        site = Site(tmp_path, disk / "ledger.db").create()
        serve_some(site)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        refused_at_start(site, "may not be written to; make file and folder writable", 2)


def test_a_ledger_that_was_rolled_back_is_refused(site):
    serve_some(site)
    shutil.copy2(site.ledger, site.folder / "backup")
    serve_some(site, 15)
    shutil.copy2(site.folder / "backup", site.ledger)
    refused_at_start(site, "that its head file names: it was rolled back, cut short or replaced", 3)


def test_a_second_centre_is_refused_and_the_first_goes_on(site):
    with Sensors(site), Subscriber(site) as subscriber, site.start() as first:
        wait_for(lambda: len(subscriber.received) > 5)
        second = Site(site.folder, site.ledger)
        refused_at_start(second, "has a writer already", 75)
        before = max(subscriber.received)
        wait_for(lambda: max(subscriber.received) > before + 5)
        assert first.stop() == 0
    check_received(site, subscriber)


# Makes the wall clock of a process jump by hours in both directions. The process notes which steps it skips, and when.
JUMPS = """
import random, time
for name, scale in (("time", 1), ("time_ns", 10**9)):
    def jumping(real=getattr(time, name), scale=scale):
        return real() + scale * random.choice((-7200, -1, 0, 1, 86400))
    setattr(time, name, jumping)

from dpfuse.centre.centre import FusionCentre
def skip(centre, skip=FusionCentre.skip):
    with open({skipped!r}, "a") as file:
        print(centre.now, time.monotonic(), file=file)
    skip(centre)
FusionCentre.skip = skip
"""


def moments(site):
    """The step in progress by the centre's clock, and the earliest and the latest moment when it can end."""
    asked_at = time.monotonic()
    clock = httpx.get(f"{site.url}/v1/clock", trust_env=False, timeout=PATIENCE_S).json()
    return clock["step"], asked_at + clock["closes_in_s"], time.monotonic() + clock["closes_in_s"]


def test_a_wall_clock_that_jumps_moves_no_release(site):
    """There are as many steps as intervals of the monotonic clock, and none is skipped before its moment has passed."""
    (skipped := site.folder / "skipped").touch()
    with Sensors(site), Subscriber(site) as subscriber, site.start(JUMPS.format(skipped=str(skipped))) as centre:
        wait_for(lambda: len(subscriber.received) > 5)
        before, earliest, latest = moments(site)
        wait_for(lambda: max(subscriber.received) > before + 30)
        after, *ends = moments(site)
        assert centre.stop() == 0
    check_received(site, subscriber)
    num_steps = after - before
    assert ends[0] - latest < (num_steps + 0.01) * INTERVAL_S and ends[1] - earliest > (num_steps - 0.01) * INTERVAL_S
    steps = [row.step for row in public_rows(site.ledger)]
    assert verify(site.ledger).num_commits == len(steps)
    # A machine under load may skip some. Their own moment is half an interval after they end.
    noted = {int(step): float(at) for step, at in map(str.split, skipped.read_text().splitlines())}
    assert set(range(1, max(steps) + 1)) - set(steps) == {step for step in noted if step <= max(steps)}
    assert all(at > earliest + (step - before + 0.49) * INTERVAL_S for step, at in noted.items())
