"""A witness that follows a centre: it keeps signed releases and notices a past that was rewritten."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections import deque
from types import SimpleNamespace

import pytest

from dpfuse.errors import FileRefused, PastChanged, ReleaseRefused
from dpfuse.public.rows import Row
from dpfuse.remote import release_topics
from dpfuse.remote import witness as witness_module
from dpfuse.remote.release_topics import ReleaseTopics, read_account
from dpfuse.remote.witness import Witness
from dpfuse.wire.broker import CENTRE, ESTIMATOR
from support.mqtt import KEYS, bridged, client, send
from support.wire import Broker, rig, serving, wait_for


@pytest.fixture
def live(tmp_path):
    (tmp_path / "live").mkdir()
    with rig(tmp_path / "live", streams=("main", "other")) as parts:
        yield parts


def test_a_witness_keeps_the_newest_release_of_each_stream_also_after_a_restart(live, tmp_path, monkeypatch):
    monkeypatch.setattr(witness_module, "_PAGE", 2)  # several pages
    path = tmp_path / "tips.jsonl"
    with serving(live.reading_app) as address:
        with Witness(address, path) as witness:
            assert witness.look() == 0
            live.tick()
            assert (witness.look(), witness.look()) == (2, 0)
        for _ in range(5):
            live.tick()
        with Witness(address, path) as witness:
            assert witness.look() == 2
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["stream"], one["step"]) for one in kept] == [("main", 1), ("other", 1), ("main", 6), ("other", 6)]
    assert kept[2]["hash"] == live.hub.recent("main")[-1].row.hash.hex()


@pytest.mark.parametrize("num_steps", [0, 2, 6])
def test_a_ledger_that_was_replaced_is_noticed_whether_it_is_shorter_or_longer(live, tmp_path, num_steps):
    for _ in range(3):
        live.tick()
    path = tmp_path / "tips.jsonl"
    with serving(live.reading_app) as address, Witness(address, path, public_key=None) as witness:
        witness.look()
    with rig(tmp_path, streams=("main", "other")) as another:
        for _ in range(num_steps):
            another.tick()
        with serving(another.reading_app) as address, Witness(address, path) as witness:
            with pytest.raises(PastChanged, match="another past" if num_steps > 2 else "has lost step 3"):
                witness.look()
    with serving(live.reading_app) as address, Witness(address, path) as witness:
        assert witness.look() == 0  # the file is as it was


def test_a_row_that_does_not_follow_is_noticed_and_a_forged_one_is_not_kept(live, tmp_path, monkeypatch):
    live.tick()
    path = tmp_path / "tips.jsonl"
    with serving(live.reading_app) as address, Witness(address, path) as witness:
        witness.look()
        live.tick()
        read = witness_module.get_json

        def forged(change):
            def get(client, place, **params):
                found = read(client, place, **params)
                for release in found.get("releases", [])[1:]:
                    release.update(change)
                return found

            monkeypatch.setattr(witness_module, "get_json", get)

        forged({"fusion_weight": 1})
        with pytest.raises(PastChanged, match="step 2 of stream 'main' does not follow"):
            witness.look()
        forged({"signature": "00" * 64})
        with pytest.raises(ReleaseRefused, match="lacks the centre's signature"):
            witness.look()
        monkeypatch.setattr(witness_module, "get_json", read)
        assert witness.look() == 2


@pytest.mark.parametrize("is_signed", [True, False])
def test_a_witness_reads_rows_of_the_design_before_an_upgrade_until_the_new_one_has_some(
    live, tmp_path, monkeypatch, is_signed
):
    live.tick()
    with serving(live.reading_app) as address, Witness(address, tmp_path / "tips.jsonl") as witness:
        witness.look()
        live.tick()
        settings, read = witness._settings(), witness_module.get_json
        upgraded = dataclasses.replace(settings, signed_by=settings.signed_by._replace(design="b" * 64))
        monkeypatch.setattr(witness, "_settings", lambda: upgraded)
        if is_signed:
            assert (witness.look(), witness.look()) == (2, 0)
            return

        def forged(client, place, **params):
            found = read(client, place, **params)
            return found | {"releases": [each | {"signature": "00" * 64} for each in found["releases"]]}

        monkeypatch.setattr(witness_module, "get_json", forged)
        with pytest.raises(ReleaseRefused, match="lacks the centre's signature"):
            witness.look()


@pytest.fixture
def topics(live, tmp_path):
    """A real broker's topics, and the lines that the witness would print about it."""
    told = []
    with Broker(tmp_path / "broker", KEYS, (7,)) as broker:
        account = KEYS.accounts(ESTIMATOR)[0]
        with ReleaseTopics("127.0.0.1", broker.port, account, ca=None, tell=told.append) as found:
            wait_for(found._client.is_connected)
            yield broker, found, told


def test_a_past_that_was_rewritten_between_two_looks_is_noticed_on_the_topic_also_after_a_restart(
    live, topics, tmp_path
):
    """Over HTTP alone nothing is noticed: what the address shows follows from what was kept."""
    broker, found, told = topics
    live.tick()
    with serving(live.reading_app) as address:
        with Witness(address, path := tmp_path / "tips.jsonl", tell=told.append, elsewhere=found.take) as witness:
            with bridged(broker, live.centre, live.hub):
                live.tick()
                wait_for(lambda: len(found._heard) == 4)
                assert (witness.look(), witness.look()) == (2, 0) and not witness._heard and not told
            first, second = (each.row for each in live.hub.recent("main"))
            rewritten = Row.after(first.hash, *second._replace(fusion_weight=second.fusion_weight + 1)[:-1])
            ahead = Row.after(second.hash, *second._replace(step=3)[:-1])
            with client(broker, *KEYS.accounts(CENTRE)[0]) as centre:
                for content in (b"[", ahead.to_dict(), live.signer.to_message(ahead).content):
                    send(centre, "dpfuse/main/releases", json.dumps(content) if isinstance(content, dict) else content)
                wait_for(lambda: len(found._heard) == 3)
                assert witness.look() == 0 and list(witness._heard) == [ahead]  # it may be shown later
                assert told == [f"2 messages from elsewhere lack the signature of {address} and are left out"]
                send(centre, "dpfuse/main/releases", live.signer.to_message(rewritten).content)
                wait_for(lambda: found._heard)
                with pytest.raises(PastChanged, match="does not show the release of step 2 of stream 'main'"):
                    witness.look()
        with Witness(address, path) as witness, pytest.raises(PastChanged, match="another past"):
            witness.look()


def test_a_rewritten_release_is_noticed_behind_any_number_of_others_and_steps_that_never_come_are_left_out_aloud(
    live, tmp_path, monkeypatch
):
    monkeypatch.setattr(witness_module, "_MAX_WAITING", 3)
    asked, read, told, batches = [], witness_module._read_page, [], []
    monkeypatch.setattr(witness_module, "_read_page", lambda c, *place: asked.append(place[:2]) or read(c, *place))
    for _ in range(8):
        live.tick()
    rows = [each.row for each in live.hub.recent("main")]
    far = [Row.after(rows[-1].hash, *rows[-1]._replace(step=step)[:-1]) for step in range(9, 19)]
    rewritten = Row.after(rows[6].hash, *rows[7]._replace(fusion_weight=rows[7].fusion_weight + 1)[:-1])

    def publish(*rows):
        batches.append([live.signer.to_message(row).content for row in rows])

    def take():
        return batches.pop(0) if batches else []

    with (
        serving(live.reading_app) as address,
        Witness(address, tmp_path / "tips.jsonl", tell=told.append, elsewhere=take) as witness,
    ):
        witness.look()
        asked.clear()
        publish(*reversed(far))
        publish(*rows[:4])
        publish(*rows[4:])
        assert witness.look() == 0 and set(witness._heard) == set(far[:3])
        assert [step for stream, step in asked if stream == "main"].count(9) == 1
        assert len([step for stream, step in asked if step > 8 and stream == "main"]) == 1  # not one for each release
        assert len(told) == 1 and "later ones are left out" in told[0]
        publish(*far)
        assert witness.look() == 0 and len(told) == 1  # once
        publish(*rows)
        publish(rewritten)
        with pytest.raises(PastChanged, match="does not show the release of step 8 of stream 'main'"):
            witness.look()


def test_releases_of_a_look_that_the_address_does_not_answer_are_compared_at_the_next_one(live, tmp_path, monkeypatch):
    live.tick()
    row = live.hub.recent("main")[-1].row
    rewritten = Row.after(bytes(32), *row._replace(fusion_weight=row.fusion_weight + 1)[:-1])
    batches, read = [], witness_module._read_page

    def away(client, stream, start, limit):
        if batches:
            raise ConnectionError("away")
        return read(client, stream, start, limit)

    with (
        serving(live.reading_app) as address,
        Witness(address, tmp_path / "tips.jsonl", elsewhere=lambda: batches.pop(0) if batches else []) as witness,
    ):
        witness.look()
        batches += [[live.signer.to_message(each).content] for each in (row, rewritten)]
        monkeypatch.setattr(witness, "_follow", lambda *_: None)
        monkeypatch.setattr(witness_module, "_read_page", away)
        with pytest.raises(ConnectionError):
            witness.look()
        with pytest.raises(PastChanged, match="does not show the release of step 1"):
            witness.look()


def test_messages_beyond_the_limit_of_the_queue_or_too_long_are_told(topics, monkeypatch):
    broker, found, told = topics
    monkeypatch.setattr(release_topics, "_MAX_MESSAGES", 2)
    monkeypatch.setattr(release_topics, "_AT_ONCE", 1)
    found._heard = deque(maxlen=2)
    with client(broker, *KEYS.accounts(CENTRE)[0]) as centre:
        for content in (b"1", b"2", b"3"):
            send(centre, "dpfuse/main/releases", content)
        wait_for(lambda: found._num_left_out == 1)
    found._on_message(None, None, SimpleNamespace(payload=bytes(2**16 + 1)))  # this broker takes none of that length
    assert [found.take() for _ in range(3)] == [[b"2"], [b"3"], []]
    assert len(told) == 1 and told[0].startswith("2 messages of the broker at 127.0.0.1")


def test_a_broker_that_goes_and_comes_back_is_told_once_and_heard_again(live, topics):
    broker, found, told = topics
    found._client.reconnect_delay_set(0.05, 0.1)
    broker.kill()
    wait_for(lambda: len(told) == 2)
    broker.start()
    with bridged(broker, live.centre, live.hub):
        live.tick()
        wait_for(found.take)
    assert [each in text for each, text in zip(("closed", "is away", "is back"), told, strict=True)] == [True] * 3


def test_an_account_that_others_may_read_or_that_is_none_is_refused(tmp_path):
    path = tmp_path / "account"
    with pytest.raises(FileRefused, match="no account at"):
        read_account(path)
    path.write_text("estimator.1 secret\n")
    path.chmod(0o644)
    with pytest.raises(FileRefused, match="run `chmod 600"):
        read_account(path)
    path.chmod(0o600)
    assert read_account(path) == ("estimator.1", "secret")
    path.write_text("secret\n")
    with pytest.raises(FileRefused, match="one line with user and password"):
        read_account(path)


class Hostile:
    """A sender that shows the true past and then rows for ever, which follow from it; `sign` signs those it can.

    Attributes:
        asked: the first step of every page that was asked for.
    """

    def __init__(self, live, sign, **change):
        self.rows, self.asked = [live.hub.recent("main")[-1].row], []
        self._sign, self._change, self._get = sign, change, witness_module.get_json

    def get_json(self, client, path, **params):
        if not path.endswith("/releases"):
            return self._get(client, path, **params)
        self.asked.append(params["start"])
        while self.rows[-1].step < params["start"] + params["limit"]:
            row = self.rows[-1]._replace(step=self.rows[-1].step + 1, **self._change)
            self.rows.append(Row.after(self.rows[-1].hash, *row[:-1]))
        page = [row for row in self.rows if row.step >= params["start"]][: params["limit"]]
        return {"releases": [row.to_dict() | {"signature": self._sign(row).hex(), "junk": "x" * 999} for row in page]}


@pytest.mark.parametrize("is_of_earlier_design", [False, True])
def test_rows_without_end_that_nobody_signed_end_a_look_with_an_error(tmp_path, monkeypatch, is_of_earlier_design):
    """Anybody makes rows that follow from a public hash."""
    monkeypatch.setattr(witness_module, "_PAGE", 2)
    monkeypatch.setattr(witness_module, "_MAX_PAGES", 5)
    with rig(tmp_path) as live, serving(live.reading_app) as address:
        live.tick()
        with Witness(address, path := tmp_path / "tips.jsonl") as witness:
            witness.look()
            kept = path.read_bytes()
            change = {"design": "0" * 16} if is_of_earlier_design else {}
            hostile = Hostile(live, lambda row: bytes(64), **change)
            monkeypatch.setattr(witness_module, "get_json", hostile.get_json)
            with pytest.raises(ReleaseRefused, match="of stream 'main' lacks the centre's signature"):
                witness.look()
    assert len(hostile.asked) == (5 if is_of_earlier_design else 1) and path.read_bytes() == kept


def test_a_look_reads_up_to_a_limit_says_so_and_the_next_one_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(witness_module, "_PAGE", 2)
    monkeypatch.setattr(witness_module, "_MAX_PAGES", 5)
    told = []
    with rig(tmp_path) as live, serving(live.reading_app) as address:
        live.tick()
        with Witness(address, path := tmp_path / "tips.jsonl", tell=told.append) as witness:
            witness.look()
            hostile = Hostile(live, live.signer.sign)
            monkeypatch.setattr(witness_module, "get_json", hostile.get_json)
            assert witness.look() == witness.look() == 1
    assert len(told) == 2 and "the next look goes on" in told[0]
    assert hostile.asked == [1, 3, 5, 7, 9, 10, 12, 14, 16, 18]
    # What is kept is the release and its signature, and nothing else that was sent.
    assert path.read_bytes().splitlines()[1:] == [live.signer.to_message(hostile.rows[at]).content for at in (9, 18)]


@pytest.mark.parametrize("step", [math.inf, math.nan, "abc", [1], {}, None, True, 0, -5, 2**63])
def test_a_clock_that_holds_no_step_is_refused(live, tmp_path, monkeypatch, step):
    read = witness_module.get_json
    clock = {"step": step}
    monkeypatch.setattr(
        witness_module, "get_json", lambda c, path, **p: clock if path == "/v1/clock" else read(c, path, **p)
    )
    with serving(live.reading_app) as address, Witness(address, tmp_path / "tips.jsonl") as witness:
        with pytest.raises(ReleaseRefused, match="the clock must hold a step"):
            witness.look()


def test_another_key_and_another_file_are_refused(live, tmp_path):
    (notes := tmp_path / "notes").write_text('{"step": 1}\n')
    with serving(live.reading_app) as address:
        with Witness(address, tmp_path / "tips", public_key="0" * 64) as witness:
            with pytest.raises(PastChanged, match="another key"):
                witness.look()
        with pytest.raises(FileRefused, match="line 1: this is not a release"):
            Witness(address, notes)


def test_the_command_looks_once_and_ends_with_an_error_if_the_past_has_changed(live, tmp_path, monkeypatch, capsys):
    from dpfuse import cli

    def run(address):
        arguments = ["dpfuse", "witness", "--from", address, "--out", str(tmp_path / "tips.jsonl"), "--once"]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code, capsys.readouterr()

    live.tick()
    with serving(live.reading_app) as address:
        code, shown = run(address)
        assert code == 0 and "the past is unchanged; 2 streams have new releases" in shown.out
    assert run(address)[0] == 1  # nobody answers
    with rig(tmp_path, streams=("main", "other")) as another, serving(another.reading_app) as address:
        code, shown = run(address)
        assert code == 1 and "has lost step 1" in shown.err


def test_the_command_listens_to_a_broker_with_the_account_of_a_file(live, topics, tmp_path, monkeypatch, capsys):
    from dpfuse import cli

    def run(address, *options):
        arguments = ["dpfuse", "witness", "--from", address, "--out", str(tmp_path / "tips.jsonl"), *options]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code, capsys.readouterr()

    (account := tmp_path / "account").write_text(" ".join(KEYS.accounts(ESTIMATOR)[0]))
    account.chmod(0o600)
    live.tick()
    row = live.hub.recent("main")[-1].row
    another = Row.after(bytes(32), *row._replace(fusion_weight=row.fusion_weight + 1)[:-1])
    broker = f"127.0.0.1:{topics[0].port}"
    with serving(live.reading_app) as address, client(topics[0], *KEYS.accounts(CENTRE)[0]) as centre:
        send(centre, "dpfuse/main/releases", live.signer.to_message(another).content, retain=True)
        assert run(address, "--mqtt", broker)[0] == 2
        code, shown = run(address, "--every", "0.1", "--mqtt", broker, "--mqtt-account", str(account))
    assert code == 1 and "does not show the release of step 1 of stream 'main'" in shown.err
