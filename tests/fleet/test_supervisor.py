"""The supervisor with holders that the test writes: changes, lost ledgers, and what the map shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpfuse.fleet import supervisor
from dpfuse.fleet.holder import ShardStatus
from dpfuse.fleet.map import FleetMap
from dpfuse.fleet.overview import make_fleet_app
from dpfuse.fleet.supervisor import Fleet
from dpfuse.wire.key_file import KeyFile
from support.designs import make_design
from support.fleets import BANK, plan
from support.wire import call, wait_for


class FakeHolder:
    """Has a ledger as a set of generations; follows what it is asked."""

    def __init__(self, name, events):
        self.name, self.events, self.made, self.spec = name, events, set(), None
        self.is_broken, self.objection, self.node = False, None, None

    def ensure(self, spec):
        if self.spec is not None and not self.spec.is_like(spec):
            self.events.append(f"change {self.name}")
        self.spec = spec
        if spec.ledger not in self.made:
            if spec.is_made:
                return ShardStatus(state="lost", addresses={})
            self.made.add(spec.ledger)
            return ShardStatus(state="made", addresses={}, node=self.node)
        if self.is_broken:
            return ShardStatus(state="down", addresses={})
        addresses = {"sensors": f"http://127.0.0.1:{spec.port}", "readers": "http://127.0.0.1:1"}
        return ShardStatus(state="up", addresses=addresses, node=self.node)

    def find_objection(self, spec):
        return self.objection

    def stop(self):
        self.events.append(f"stop {self.name}")


@pytest.fixture
def make(tmp_path):
    events, holders = [], {}

    def make_holder(name):
        return holders.setdefault(name, FakeHolder(name, events))

    def make_fleet(bank=BANK, **shards):
        fleet = Fleet(replace(plan(bank=bank, **shards), folder=tmp_path), make_holder)
        fleet.events, fleet.holders = events, holders
        fleet.look = fleet._look
        return fleet

    make_fleet.folder = tmp_path
    return make_fleet


@pytest.fixture
def hurry(monkeypatch):
    monkeypatch.setattr(supervisor, "_ANNOUNCED_S", 0.0)


def change(fleet, design="freeway", **shards):
    fleet._change(replace(plan(**shards), folder=fleet._plan.folder, design=design))


def go_on(fleet):
    for _ in range(6):
        fleet._advance()
        fleet._look()


def test_a_shard_starts_once_the_map_says_that_its_ledger_was_made(make):
    fleet = make(north="a")
    fleet.look()
    assert FleetMap.load(make.folder / "map.json").shards["north"].is_made
    fleet.look()
    assert fleet.published_map()["streams"]["a"] == {
        "shard": "north",
        "stream": "a",
        "sensors": "http://127.0.0.1:9000",
        "readers": "http://127.0.0.1:1",
    }


def test_the_map_keeps_which_node_has_the_ledger_and_a_new_ledger_may_begin_anywhere(make):
    def node():
        return FleetMap.load(make.folder / "map.json").shards["north"].node

    fleet = make(north="a")
    north = fleet._make_holder("north")
    north.node = "10.0.0.4"
    for _ in range(2):
        fleet.look()
    assert node() == north.spec.node == "10.0.0.4"
    north.node = "10.0.0.5"  # with its disk
    for _ in range(2):
        fleet.look()
    assert node() == north.spec.node == "10.0.0.5" and fleet.published_map()["version"] == 1
    north.made.clear()
    fleet.look()
    assert node() is None and not fleet.events
    fleet.look()
    assert north.spec.node is None and north.spec.ledger.name == "ledger-2.db"


def test_the_map_shows_the_names_that_the_plan_gives_to_addresses(make):
    fleet = make(north="a")
    fleet._plan = replace(fleet._plan, hosts={"127.0.0.1": "north.example.org"})
    for _ in range(2):
        fleet.look()
    published = fleet.published_map()
    assert published["streams"]["a"]["sensors"] == "http://north.example.org:9000"
    assert published["shards"]["north"]["readers"] == "http://north.example.org:1"


def test_a_lost_ledger_with_a_bank_is_a_new_generation_and_without_one_stays_away(make, caplog):
    for bank, expected in ((BANK, "a.2"), (None, "a")):
        (make.folder / "map.json").unlink(missing_ok=True)
        fleet = make(bank=bank, north="a")
        fleet.look()
        fleet.holders["north"].made.clear()
        for _ in range(4):
            fleet.look()
        published = fleet.published_map()
        assert published["streams"]["a"]["stream"] == expected
        assert published["shards"]["north"]["state"] == ("up" if bank else "lost")
        fleet.holders.clear()
    assert sum("restore it from a backup" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.usefixtures("hurry")
def test_the_shard_that_loses_a_stream_changes_before_the_one_that_gets_it(make):
    fleet = make(north="a b", south="c")
    for _ in range(2):
        fleet.look()
    change(fleet, north="a", south="c b")
    go_on(fleet)
    assert fleet.events == ["change north", "change south"]
    assert FleetMap.load(make.folder / "map.json").version == 2
    change(fleet, north="a c b")
    go_on(fleet)
    assert fleet.events[2:] == ["stop south", "change north"]
    assert fleet.published_map()["shards"]["south"]["state"] == "drained"


@pytest.mark.usefixtures("hurry")
def test_shards_after_one_that_does_not_come_up_stay_as_they_are(make, monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "_CHANGES_WITHIN_S", 0.0)
    fleet = make(north="a b", south="c", west="d")
    for _ in range(2):
        fleet.look()
    fleet.holders["north"].is_broken = True
    change(fleet, design="other", north="a", south="c b", west="d")
    go_on(fleet)
    assert fleet.events == ["change north"]
    assert {fleet.holders[name].spec.design for name in ("south", "west")} == {"freeway"}
    assert fleet.published_map()["streams"]["c"]["readers"] and not fleet.published_map()["streams"]["b"]["readers"]
    assert "a changed shard does not come up; the others keep design and streams until it is" in caplog.text
    fleet.holders["north"].is_broken = False
    go_on(fleet)
    assert fleet.events == ["change north", "change south", "change west"]


@pytest.mark.usefixtures("hurry")
def test_a_plan_that_goes_back_mends_a_shard_that_does_not_come_up(make):
    fleet = make(north="a", south="c")
    for _ in range(2):
        fleet.look()
    fleet.holders["north"].is_broken = True
    change(fleet, design="other", north="a", south="c")
    go_on(fleet)
    fleet.holders["north"].is_broken = False
    change(fleet, north="a", south="c")
    go_on(fleet)
    assert fleet.events == ["change north", "change north"]
    assert fleet.published_map()["shards"]["north"]["state"] == "up"


def test_a_stop_is_in_the_map_before_it_is_made(make, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(supervisor.time, "time", lambda: now[0])
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])
    fleet = make(north="a b", south="c")
    for _ in range(2):
        fleet.look()
    change(fleet, north="a", south="c b")
    go_on(fleet)
    published = fleet.published_map()
    assert published["version"] == 2 and fleet.events == []
    assert {name: one["stops_at"] for name, one in published["shards"].items()} == {"north": 1005.0, "south": None}
    assert published["streams"]["b"]["stream"] == "b" and published["streams"]["b"]["shard"] == "north"
    now[0] = 1005.0
    go_on(fleet)
    published = fleet.published_map()
    assert fleet.events == ["change north"] and published["shards"]["south"]["stops_at"] == 1010.0
    # South does not have it before its own change.
    assert published["streams"]["b"] == {"shard": "south", "stream": "b.2", "sensors": None, "readers": None}
    now[0] = 1010.0
    go_on(fleet)
    published = fleet.published_map()
    assert published["streams"]["b"]["readers"] and published["shards"]["south"]["stops_at"] is None


@pytest.mark.usefixtures("hurry")
def test_a_plan_that_one_shard_cannot_follow_changes_none(make, caplog):
    fleet = make(north="a", south="c")
    for _ in range(2):
        fleet.look()
    fleet.holders["south"].objection = "the design has budget 3"
    change(fleet, design="other", north="a", south="c")
    go_on(fleet)
    assert "the fleet keeps its plan: shard 'south' cannot follow the new one: the design has budget 3" in caplog.text
    assert fleet.events == [] and FleetMap.load(make.folder / "map.json").version == 1


def test_a_design_with_another_guarantee_is_refused_before_the_map_changes(tmp_path, caplog):
    """With real ledgers."""
    for name, budget in (("d", 0.2), ("other", 0.3)):
        make_design("individual", spread=0.3, horizon=None, expected_stay=4.0, budget=budget).save(tmp_path / name)
    KeyFile.create(tmp_path / "k")
    own = {"folder": tmp_path / "fleet", "keys": tmp_path / "k"}
    fleet = Fleet(replace(plan(bank=None, north="a"), design=str(tmp_path / "d"), **own))
    fleet._look()  # makes the ledger
    fleet._change(replace(plan(bank=None, north="a", south="b"), design=str(tmp_path / "other"), **own))
    assert "keeps accounts for budget 0.2, and the design has budget 0.3" in caplog.text
    assert set(FleetMap.load(tmp_path / "fleet/map.json").shards) == {"north"}
    fleet._change(replace(plan(bank=None, north="a", south="b"), design=str(tmp_path / "d"), **own))
    assert set(FleetMap.load(tmp_path / "fleet/map.json").shards) == {"north", "south"}


def test_a_fleet_whose_disk_is_full_says_so_once_and_goes_on_when_there_is_room(make, monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "_LOOK_EVERY_S", 0.01)
    fleet = make(north="a", south="c")
    (make.folder / "map.new").mkdir()  # the map cannot be written
    rounds = []
    monkeypatch.setattr(fleet, "_advance", lambda: rounds.append(None))
    fleet.start()
    wait_for(lambda: len(rounds) > 5)
    said = [record.getMessage() for record in caplog.records if "tries again" in record.getMessage()]
    assert len(said) == 1 and "IsADirectoryError" in said[0]
    (make.folder / "map.new").rmdir()
    wait_for(lambda: all(one["state"] == "up" for one in fleet.published_map()["shards"].values()))
    assert fleet.state() == "ok"
    fleet.stop()
    assert sorted(fleet.events) == ["stop north", "stop south"]


def test_a_supervisor_that_fails_for_long_in_an_unforeseen_way_is_not_alive_and_a_full_disk_is_no_such_way(
    make, monkeypatch
):
    now = [100.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])
    fleet = make(north="a")
    app = make_fleet_app(fleet.published_map, fleet.state)

    def statuses(error, after_s):
        def part():
            if error is not None:
                raise error

        now[0] += after_s
        fleet._attempt(part)
        return [call(app, "GET", path).status_code for path in ("/livez", "/healthz")], fleet.state()

    assert statuses(OSError(28, "no space"), 0) == statuses(OSError(28, "no space"), 100) == ([200, 503], "failing")
    assert statuses(KeyError("x"), 0) == statuses(KeyError("x"), 59) == ([200, 503], "failing")
    assert statuses(KeyError("x"), 1) == ([503, 503], "broken")
    assert statuses(None, 1)[1] == "ok"


def test_a_plan_that_cannot_be_written_is_not_followed(make, caplog):
    fleet = make(north="a", south="c")
    for _ in range(2):
        fleet.look()
    (make.folder / "map.new").mkdir()
    change(fleet, north="a c")
    (make.folder / "map.new").rmdir()
    go_on(fleet)
    assert "the fleet keeps its plan: " in caplog.text and fleet.events == []
    assert fleet.published_map()["version"] == 1 and fleet.published_map()["shards"]["south"]["state"] == "up"


def test_a_shard_that_fails_in_an_unforeseen_way_leaves_the_others_alone(make, caplog):
    fleet = make(north="a", south="c")
    fleet.look()
    fleet.holders["north"].ensure = lambda spec: 1 / 0
    for _ in range(3):
        fleet.look()
    assert {name: one["state"] for name, one in fleet.published_map()["shards"].items()} == {
        "north": "down",
        "south": "up",
    }
    assert caplog.text.count("a shard cannot start: division by zero") == 1


def test_a_map_that_cannot_be_written_for_one_shard_hides_nothing_of_the_others(make):
    fleet = make(north="a", south="c")
    for _ in range(2):
        fleet.look()
    fleet.holders["north"].node, fleet.holders["south"].is_broken = "10.0.0.5", True
    (make.folder / "map.new").mkdir()
    with pytest.raises(IsADirectoryError):
        fleet.look()
    assert fleet.published_map()["shards"]["south"]["state"] == "down"


def test_a_plan_whose_check_fails_in_an_unforeseen_way_is_said_to_be_dropped(make, monkeypatch, caplog):
    fleet = make(north="a", south="c")
    for _ in range(2):
        fleet.look()
    monkeypatch.setattr(fleet.holders["north"], "find_objection", lambda spec: 1 / 0)
    fleet.follow(replace(plan(north="a c"), folder=make.folder))
    fleet._attempt(fleet._take_plan)
    assert "the fleet keeps its plan: ZeroDivisionError: division by zero (test_supervisor.py, line" in caplog.text
    assert "tries again" not in caplog.text and fleet.published_map()["version"] == 1


def test_a_shard_whose_drain_fails_is_drained_later(make, monkeypatch):
    fleet = make(north="a", south="c")
    for _ in range(2):
        fleet.look()
    monkeypatch.setattr(supervisor, "_ANNOUNCED_S", 0.0)
    monkeypatch.setattr(fleet.holders["south"], "stop", lambda: 1 / 0)
    change(fleet, north="a")
    fleet._attempt(fleet._advance)
    assert fleet.events == []
    monkeypatch.undo()
    fleet._attempt(fleet._advance)
    assert fleet.events == ["stop south"]


def test_a_plan_that_cannot_be_followed_is_refused_and_changes_nothing(make):
    fleet = make(bank=None, north="a", south="c")
    with pytest.raises(ValueError, match="must stay in shard"):
        fleet.follow(replace(plan(bank=None, north="x", south="c a"), folder=make.folder))
    with pytest.raises(ValueError, match="start it again"):
        fleet.follow(replace(plan(bank=BANK, north="a", south="c"), folder=make.folder))
    assert FleetMap.load(make.folder / "map.json").version == 1


def test_map_health_and_page_show_every_shard(make):
    fleet = make(north="a", south="c")
    fleet.look()
    app = make_fleet_app(fleet.published_map)
    assert call(app, "GET", "/v1/map").json()["version"] == 1
    health = call(app, "GET", "/healthz")
    assert health.status_code == 503 and [one["shard"] for one in health.json()["shards"]] == ["north", "south"]
    page = call(app, "GET", "/").text
    assert "<td>north</td>" in page and "Some shards do not release on time." in page
