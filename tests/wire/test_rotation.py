"""Keys of a running centre are rotated and one is revoked while all sensors report: nobody else loses a report."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from dpfuse.wire.key_file import KeyFile
from dpfuse.wire.keys import Keys
from support.wire import PATIENCE_S, addresses_of, command, endless_design, lines_of

NUM_SENSORS, NUM_GATEWAYS, REVOKED = 120, 6, 7


class Gateway(threading.Thread):
    """Sends the reports of its sensors again and again, each signed with the key that the sensor has at the moment."""

    def __init__(self, address, sensors, keys):
        super().__init__(daemon=True)
        self.address, self.keys, self.is_over = address, {one: keys.issue(one) for one in sensors}, False
        self.num_sent, self.refused, self.last_taken = 0, [], {}

    def run(self):
        with httpx.Client(base_url=self.address, trust_env=False, timeout=PATIENCE_S) as client:
            while not self.is_over:
                step = client.get("/v1/clock").json()["step"]
                sensors = list(self.keys)
                began_at = time.monotonic()
                reports = [self.keys[one].sign("main", step, [0.5, -0.5]) for one in sensors]
                answer = client.post("/v1/reports", **lines_of(*reports)).json()
                assert answer["received"] + len(answer["refused"]) == len(sensors)
                self.num_sent += len(sensors)
                refused = [sensors[place] for place in answer["refused"]]
                self.refused += [(sensor, began_at) for sensor in refused]
                self.last_taken |= dict.fromkeys(set(sensors) - set(refused), began_at)


@pytest.mark.slow
def test_a_rotation_and_a_revocation_under_load_lose_no_report_of_anybody_else(tmp_path, pytestconfig):
    folder, cache = tmp_path, pytestconfig.cache.mkdir("jax")
    file = KeyFile.create(folder / "keys")
    endless_design().save(folder / "design")
    options = ("--design", "design", "--ledger", "ledger/db", "--new", "--keys", "keys", "--interval", 0.2)
    with command("serve", *options, "--port", 0, "--reading-port", 0, folder=folder, cache=cache) as running:
        sensors, _ = addresses_of(running)
        keys = Keys(file)
        gateways = [Gateway(sensors, range(n, NUM_SENSORS, NUM_GATEWAYS), keys) for n in range(NUM_GATEWAYS)]
        for one in gateways:
            one.start()
        time.sleep(1.5)
        file = file.rotate(overlap_days=1)
        keys = Keys(file)
        for number, one in enumerate(gateways):  # new keys reach the sensors one after the other, the first at once
            one.keys |= {sensor: keys.issue(sensor) for sensor in one.keys}
            time.sleep(0.3 if number else 0)
        revoked_at = time.monotonic()
        file.revoke([REVOKED])
        time.sleep(4)
        for one in gateways:
            one.is_over = True
        for one in gateways:
            one.join(PATIENCE_S)
        refused = [each for one in gateways for each in one.refused]
        assert {sensor for sensor, _ in refused} == {REVOKED}
        assert all(began_at > revoked_at - 1 for _, began_at in refused)
        assert len(refused) > 2 and gateways[REVOKED % NUM_GATEWAYS].last_taken[REVOKED] < revoked_at + 3
        assert min(one.num_sent for one in gateways) > 200 and running.process.poll() is None
        assert "Traceback" not in running.stderr()
