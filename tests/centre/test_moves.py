"""A running centre is backed up, lost and restored, or moved: no release is changed or drawn twice."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from dpfuse import Ledger
from dpfuse.ledger import backup, public_rows, restore, verify
from dpfuse.public.signatures import Signer
from support.live_centre import SENSORS, Sensors, Site, Subscriber
from support.wire import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path / "first", tmp_path / "first/road.db").create()
    (tmp_path / "elsewhere").mkdir()
    site.options = [f"--witness={tmp_path / 'elsewhere/rows.jsonl'}"]
    return site


@contextmanager
def running(site, subscriber):
    """The centre, after the subscriber has received ten releases more; it is killed at the end."""
    with site.start() as centre:
        centre.wait_until_up()
        wait_for_more(subscriber)
        yield
        assert centre.kill() == -9


def wait_for_more(subscriber):
    before = len(subscriber.received)
    wait_for(lambda: len(subscriber.received) >= before + 10)


def test_a_lost_ledger_is_restored_from_an_online_backup_and_the_witness(site, tmp_path):
    copy, rows = tmp_path / "elsewhere/backup", tmp_path / "elsewhere/rows.jsonl"
    with Sensors(site), Subscriber(site) as subscriber:
        with running(site, subscriber):
            backup(site.ledger, copy)
            wait_for_more(subscriber)
        spent = debits_of(site)
        for path in Path(site.ledger).parent.glob("road.db*"):
            if not path.name.endswith("signing-key"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        key = Signer(f"{site.ledger}.signing-key", "", "").signatory.public_key
        found, restored = restore(copy, site.ledger, witness=rows, public_key=key)
        assert 0 < restored.charge and found.streams["main"].last_step >= max(subscriber.received)
        after = debits_of(site)
        assert all(spent[sensor] <= after[sensor] + restored.charge for sensor in SENSORS)
        with running(site, subscriber):
            pass
    assert not subscriber.contradictions
    stored = {row.step: row.to_dict() for row in public_rows(site.ledger)}
    assert all(stored[step]["hash"] == release["hash"] for step, release in subscriber.received.items())
    verify(site.ledger)


def test_a_centre_moves_to_another_machine_and_an_old_copy_is_refused_there(site, tmp_path):
    with Sensors(site), Subscriber(site) as subscriber:
        with running(site, subscriber):
            pass
        old = tmp_path / "old"
        shutil.copytree(site.folder, old)
        with running(site, subscriber):
            pass
    tip = verify(site.ledger).tip.hex()
    # The documented way: all files of the centre together, and the tip by another way.
    there = Site(shutil.copytree(site.folder, tmp_path / "second"), tmp_path / "second/road.db")
    there.options = [*site.options, f"--tip={tip}"]
    before = there.last_step()
    with there.start() as centre:
        centre.wait_until_up()
        wait_for(lambda: there.last_step() > before + 3)
        assert centre.stop() == 0
    assert max(subscriber.received) <= before
    behind = Site(old, old / "road.db")
    behind.options = [f"--tip={tip}"]
    with behind.start() as centre:
        assert centre.wait() != 0 and f"does not hold the tip {tip}: it was rolled back" in centre.errors


def debits_of(site):
    with Ledger.open(site.ledger, site.design) as ledger:
        return {sensor: 0 for sensor in SENSORS} | ledger.accounts("main").accounts()
