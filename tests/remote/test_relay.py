"""A relay: what it hands out is what the centre published, checked, and old steps come from upstream in blocks."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx
import orjson
import pytest

from dpfuse import _archive
from dpfuse.errors import DpfuseError, ReleaseRefused
from dpfuse.public import feed as feed_module
from dpfuse.public import reading
from dpfuse.public.feed import Feed
from dpfuse.public.hub import HistoryAway, Hub
from dpfuse.public.reading import make_reading_app
from dpfuse.public.rows import Message, Row, read_any_row, release_message
from dpfuse.public.settings import PublicSettings
from dpfuse.public.signatures import Signer, make_key
from dpfuse.public.signed_estimator import sign_estimator
from dpfuse.remote import client as client_module
from dpfuse.remote import relay as relay_module
from dpfuse.remote.block_history import BLOCK, BlockHistory
from dpfuse.remote.relay import Relay, RelayedClock
from dpfuse.wire.feed_door import FeedDoor, make_feed_app
from support.designs import make_design
from support.relays import following_relay
from support.wire import Recorder, call, endless_design, events, following, rig, serving, wait_for

WRONG_TIMES = [{"closes_in_s": float("nan")}, {"delay_s": float("inf")}, {"step": 10**30}, {"interval_s": 1e-320}]
READ = ["/metrics", "/v1/guarantee", "/v1/estimator", "/v1/relay/settings", "/v1/streams/main/releases", "/"]


@pytest.fixture
def live(tmp_path):
    with rig(tmp_path, make_design("total", spread=0.3), streams=("main", "other")) as parts:
        yield parts


def test_a_relay_answers_what_the_centre_answers_byte_for_byte(live):
    live.tick()
    with serving(live.reading_app) as address, following_relay(address) as relay:
        for _ in range(3):
            live.tick()
        wait_for(lambda: relay.hub.last_step("other") == 4)
        for path in [*READ, "/v1/estimators", f"/v1/estimators/{live.design.fingerprint[:16]}"]:
            assert call(relay.app, "GET", path).content == call(live.reading_app, "GET", path).content, path
        clock = call(relay.app, "GET", "/v1/clock").json()
        assert clock["step"] >= 5  # it runs on
        assert (clock["status"], clock["spent"]) == ("running", [])
        with serving(relay.app) as relayed:
            with following(relayed, path="feed") as lines, following(address, path="feed") as original:
                assert events(lines, 5) == events(original, 5)
            with following_relay(relayed) as second:  # a relay of a relay
                live.tick()
                wait_for(lambda: second.hub.last_step("main") == 5)
                assert second.hub.messages("main") == live.hub.messages("main")


def test_the_feed_of_a_replay_reaches_the_relay_with_its_notes(tmp_path):
    with rig(tmp_path, replay=True) as live, serving(live.reading_app) as address, following_relay(address) as relay:
        live.call("POST", "/v1/replay/truth", json={"stream": "main", "step": 1, "state": [3.25]})
        live.send(live.report(1), live.report(2))
        [one] = live.tick()
        wait_for(lambda: relay.hub.last_step("main") == 1)
        assert relay.feed.describe(relay.hub.recent("main")[0]) == live.feed.describe(one)
        assert live.feed.describe(one)["reports"] == 2


def event_with(live, point):
    facts = {"status": "running", "first_step": 1, "clock": live.watch.clock()}
    return {"facts": facts, "points": [point]}


def point_of(live, number, **changes):
    [found] = [pair for pair in live.hub.recent_messages("main", number) if pair[0].row.step == number]
    return {"release": json.loads(found[1].content) | changes, "mean": list(found[0].mean), "std": list(found[0].std)}


def test_a_forged_release_is_left_out_and_the_genuine_one_is_still_taken(live):
    for _ in range(3):
        live.tick()
    told = []
    with serving(live.reading_app) as address:
        relay = Relay(address, public_key=live.signer.signatory.public_key, tell=told.append)
        relay.close()
    relay._take(event_with(live, point_of(live, 1)))
    for changes in ({"fusion_weight": 7}, {"signature": "00" * 64}, {"signature": None}, {"step": 3}):
        relay._take(event_with(live, point_of(live, 2, **changes)))
        assert relay.hub.last_step("main") == 1
    assert len(told) == 4 and all("without the centre's signature" in line for line in told)
    relay._take(event_with(live, point_of(live, 2)))
    relay._take(event_with(live, point_of(live, 1)))  # again, and too late
    relay._take(event_with(live, point_of(live, 3)))
    assert relay.hub.messages("main") == live.hub.messages("main")


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("num_more", [0, 3])
def test_old_rows_of_an_earlier_design_are_passed_on_if_they_are_signed(live, tmp_path, is_local, num_more):
    """Designs may differ in the dimension. Through a socket of this machine rows come without their estimator."""
    earlier = Signer(tmp_path / "ledger.db.signing-key", live.ledger.terms.ledger_id, "a" * 64)
    live.design.export_estimator(path := tmp_path / "earlier")
    sign_estimator(path, earlier)
    last, messages = bytes(32), []
    for step in range(1, 5):
        signer, design = (earlier, "a" * 16) if step < 4 else (live.signer, live.design.fingerprint[:16])
        size = live.design.structure.dimension + (num_more if step < 4 else 0)
        row = Row.after(last, "main", step, bytes(8 * size), 7, None, None, design)
        last = row.hash
        messages.append(signer.to_message(row))
    forged = [messages[0], release_message(read_any_row(json.loads(messages[1].content)), bytes(64)), *messages[2:]]
    for sent, found in [(messages, messages), (forged, forged if is_local else [*forged[:1], *forged[2:]])]:
        hub = Hub({"main": 4, "other": 0}, lambda stream, start, sent=sent: iter(sent[start - 1 :]))
        feed = Feed(hub, live.feed.settings, status=lambda: "running")
        estimator, kept = call(live.reading_app, "GET", "/v1/estimator").content, {"a" * 16: path.read_bytes()}
        with feed_of(feed, estimator, live.watch.clock, {} if is_local else kept, is_local) as address:
            relay = Relay(address)
            assert relay._fetch("main", 1, 4) == found
            assert relay._fetch("main", 2, 3) == [each for each in found if each.step in (2, 3)]
            relay.close()


@contextmanager
def feed_of(feed, estimator, clock, by_design, is_local):
    """The address of a centre's socket for relays, or of its own relay."""
    if is_local:
        door = FeedDoor(make_feed_app(feed, estimator, clock, by_design)).start()
        try:
            yield f"unix:{door.path}"
        finally:
            door.stop()
    else:
        with serving(make_reading_app(feed, estimator, clock, by_design=by_design)) as address:
            yield address


def test_an_estimator_that_the_centre_has_not_signed_is_not_handed_on(live, tmp_path, monkeypatch):
    live.tick()
    (path := tmp_path / "estimator").write_bytes(call(live.reading_app, "GET", "/v1/estimator").content)
    metadata, arrays = _archive.read(path, "estimator")
    _archive.write(path, metadata, arrays | {"state_mean": arrays["state_mean"] + 1e6})
    moved = path.read_bytes()
    live.design.export_estimator(path)
    unsigned = path.read_bytes()
    make_key(tmp_path / "strange")
    sign_estimator(path, Signer(tmp_path / "strange", *live.signer.signatory[1:]))
    of_another_key, sent = path.read_bytes(), []
    get_file, current = relay_module.get_file, "/v1/estimator"
    monkeypatch.setattr(
        relay_module, "get_file", lambda client, place: sent[-1] if place == current else get_file(client, place)
    )
    with serving(live.reading_app) as address:
        for content, reason in [(moved, "is refused: .* is not what the centre signed"), (b"", "is refused: "),
                                (unsigned, "of another key, ledger or design than it names"),
                                (of_another_key, "of another key, ledger or design than it names")]:  # fmt: skip
            sent.append(content)
            with pytest.raises(ReleaseRefused, match=reason):
                Relay(address)
        current = f"/v1/estimators/{live.design.fingerprint[:16]}"
        with pytest.raises(ReleaseRefused, match="of another key or ledger than it names"):
            Relay(address)


def test_a_relay_that_is_given_no_key_says_which_one_it_checks_with(live):
    key, told = live.signer.signatory.public_key, []
    with serving(live.reading_app) as address:
        for public_key in (None, key):
            Relay(address, public_key=public_key, tell=told.append).close()
    assert told == [f"the centre's public key is {key}, as {address} says; to be certain, give it as --key"]


def test_events_of_any_other_shape_are_refused(live):
    live.tick()
    with serving(live.reading_app) as address:
        relay = Relay(address)
        relay.close()
        with pytest.raises(ReleaseRefused, match="another public key"):
            Relay(address, public_key="0" * 64)
    good = event_with(live, point_of(live, 1))
    for wrong in [{}, good | {"points": 3}, good | {"points": [3]}, good | {"points": [{}]}, good | {"facts": None},
                  good | {"facts": {"clock": {"step": "x"}}},
                  *(good | {"facts": {"clock": live.watch.clock() | wrong}} for wrong in WRONG_TIMES),
                  event_with(live, point_of(live, 1, stream="nowhere"))]:  # fmt: skip
        with pytest.raises(ReleaseRefused):
            relay._take(wrong)
    assert relay.hub.last_step("main") == 0


def test_numbers_of_any_size_from_upstream_leave_the_relay_running(tmp_path):
    with rig(tmp_path, replay=True) as live:
        live.tick()
        with serving(live.reading_app) as address:
            relay = Relay(address)
            relay.close()
        for number, large in enumerate((10**400, -(10**400), float("nan"), float("inf")), 1):
            event = event_with(live, point_of(live, number))
            event["points"][0] |= {"mean": [large], "std": [large], "released": large}
            event["points"][0]["notes"] = {"truth": [large], "num_reports": large, "latency_s": large}
            event["facts"]["first_step"] = large
            relay._take(event)
            app = make_reading_app(relay.feed, b"", relay.clock)
            for path in ("/metrics", "/healthz", "/v1/clock"):
                assert call(app, "GET", path).status_code == 200
            [one] = relay.hub.recent("main", number)
            assert orjson.dumps(relay.feed.describe(one))
            live.tick()


def test_an_answer_without_an_end_is_refused(monkeypatch):
    monkeypatch.setattr(client_module, "_MAX_JSON", 1000)
    endless = httpx.MockTransport(lambda _: httpx.Response(200, content=iter([b" " * 100] * 50)))
    with httpx.Client(transport=endless, base_url="http://centre") as client, pytest.raises(ReleaseRefused):
        client_module.get_json(client, "/v1/relay/settings")


def test_missed_steps_are_read_from_upstream_once_for_all_readers(live, monkeypatch):
    """A relay that joins late has the last steps in memory, and readers still get every step."""
    monkeypatch.setattr(feed_module, "HISTORY_S", 0.4)
    for _ in range(5):
        live.tick()
    asked = []
    original = live.hub.messages

    def count(stream, start=1, limit=500):
        asked.append((stream, start))
        return original(stream, start, limit)

    monkeypatch.setattr(live.hub, "messages", count)
    with serving(live.reading_app) as address, following_relay(address) as relay:
        wait_for(lambda: relay.hub.last_step("main") == 5)
        assert [one.row.step for one in relay.hub.recent("main")] == [4, 5]
        wanted = original("main")
        with (
            serving(relay.app) as relayed,
            httpx.Client(base_url=relayed, trust_env=False, verify=False, timeout=60) as client,
        ):
            readers = [threading.Thread(target=client.get, args=("/v1/streams/main/releases",)) for _ in range(16)]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            found = client.get("/v1/streams/main/releases?start=1").json()["releases"]
        assert found == [json.loads(message.content) for message in wanted]
        assert asked == [("main", 1)]


@pytest.mark.parametrize("has_bank", [True, False])
def test_the_readers_of_a_relay_see_whether_the_guarantee_is_for_all_centres_of_a_bank(tmp_path, has_bank):
    centre = Recorder()
    centre.has_bank = has_bank
    with rig(tmp_path, centre=centre) as live, serving(live.reading_app) as address, following_relay(address) as relay:
        for path in ("/v1/guarantee", "/"):
            assert ("over all centres of one bank" in call(relay.app, "GET", path).text) == has_bank


def test_a_relay_stops_if_the_settings_have_changed(live):
    with serving(live.reading_app) as address:
        relay = Relay(address)
        relay._check_unchanged()
        relay._settings = PublicSettings.from_dict(relay._settings.to_dict() | {"interval_s": 9.0})
        with pytest.raises(DpfuseError, match="have changed"):
            relay._check_unchanged()
        relay.close()


def test_settings_survive_json_and_those_of_strangers_are_checked(live):
    described = orjson.loads(orjson.dumps(live.feed.settings.to_dict()))
    assert PublicSettings.from_dict(described) == live.feed.settings
    wrong = [{"fingerprint": "<script>"}, {"streams": []}, {"streams": ["<b>"]}, {"interval_s": 0}, {"interval_s": "1"},
             {"first_step": 0}, {"num_states": 10**9}, {"guarantee": {}}, {"signed_by": {"public_key": "x"}},
             {"labels": ["a", "b", "c"]}, {"channels": [1]}, {"is_replay": 1}, {"has_bank": 1},
             {"streams_in_ledger": 0}, {"streams_in_ledger": 1.0},
             {"more": 1}, {"interval_s": 1e-320}, {"horizon": 10**400}, {"spent_below": 10**400},
             {"labels": ["\ud800"] * described["num_states"]}, {"labels": ["x" * 201] * described["num_states"]},
             {"channel_labels": ["\udfff"] * len(described["channels"])}, {"features": "\ud800"}, {"features": "x"},
             {"features": []}, {"channels": [[0, 10**400]]},
             {"guarantee": described["guarantee"] | {"order": 10**400}}]  # fmt: skip
    for changes in wrong:
        with pytest.raises(ValueError):
            PublicSettings.from_dict(described | changes)
    with pytest.raises(ValueError):
        PublicSettings.from_dict({})
    fine = {"labels": ["Dichte ρ 🚗 [veh/km]"] * described["num_states"]}
    assert PublicSettings.from_dict(described | fine).labels == tuple(fine["labels"])


@pytest.mark.parametrize("label", ["\udcff", "x" * 201])
def test_a_label_that_no_answer_can_hold_is_refused_at_the_start(tmp_path, label):
    """`--label` with a byte that is not UTF-8 becomes such a text."""
    num_states = endless_design().structure.num_states
    with (
        pytest.raises(ValueError, match="labels must be texts of up to 200 characters"),
        rig(tmp_path, labels=[label] * num_states),
    ):
        pass


def test_the_relayed_clock_goes_on_between_what_it_hears(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = RelayedClock()
    clock.set({"step": 7, "closes_in_s": 0.05, "interval_s": 0.2, "delay_s": 0.1, "is_over": False})
    now[0] += 0.5
    assert clock()["step"] == 7 + 3 and clock()["closes_in_s"] == pytest.approx(0.15)
    clock.set({"step": 9, "closes_in_s": 0.05, "interval_s": 0.2, "delay_s": 0.1, "is_over": True})
    now[0] += 50
    assert clock()["step"] == 9


class TestBlockHistory:
    def test_each_block_is_fetched_once_and_the_last_one_again_when_it_has_grown(self):
        asked, last = [], [2 * BLOCK + 10]

        def fetch(stream, first, last_step):
            asked.append((first, last_step))
            return [Message(step, b"x") for step in range(first, last_step + 1) if step % 3]

        history = BlockHistory(fetch, lambda stream: last[0])
        wanted = [step for step in range(5, last[0] + 1) if step % 3]
        assert [message.step for message in history("main", 5)] == wanted
        assert [message.step for message in history("main", BLOCK + 1)] == [step for step in wanted if step > BLOCK]
        assert asked == [(1, BLOCK), (BLOCK + 1, 2 * BLOCK), (2 * BLOCK + 1, last[0])]
        last[0] += 5
        assert len(list(history("main", last[0] - 1))) > 0 and asked[3:] == [(2 * BLOCK + 1, last[0])]

    def test_the_memory_is_bounded(self):
        history = BlockHistory(
            lambda stream, first, last: [Message(first, bytes(30 * 2**20))], lambda stream: 100 * BLOCK
        )
        for _ in zip(range(20), history("main", 1), strict=False):
            assert history._num_bytes == sum(block.num_bytes for block in history._blocks.values()) <= 64 * 2**20

    def test_a_centre_that_is_away_is_said_to_be(self):
        def fetch(stream, first, last):
            raise HistoryAway

        with pytest.raises(HistoryAway):
            list(BlockHistory(fetch, lambda stream: 5)("main", 1))


def test_the_process_of_a_relay_holds_neither_centre_nor_ledger_nor_jax():
    code = (
        "import sys, dpfuse.cli.relay, dpfuse.remote.relay_server, dpfuse.public.reading\n"
        "parts = ('dpfuse.centre', 'dpfuse.ledger', 'dpfuse.wire', 'dpfuse.policy', 'jax', 'apsw', 'opendp')\n"
        "print([name for name in sys.modules if name.startswith(parts)])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout.strip() == "[]"


def test_a_relay_starts_without_the_conversions_and_makes_them_once(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(reading, "_state", lambda feed, state=reading._state: made.append(1) or state(feed))
    with rig(tmp_path) as live:
        assert made == []
        assert live.get("/").status_code == live.get("/v1/guarantee").status_code == live.get("/").status_code == 200
        assert made == [1]
