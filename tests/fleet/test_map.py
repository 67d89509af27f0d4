"""Plan and map of a fleet: what moves, what is refused, and that a map is decided before anything is done."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from dpfuse.cli import app
from dpfuse.errors import DpfuseError, LedgerMismatch
from dpfuse.fleet.map import FleetMap
from dpfuse.fleet.plan import FleetPlan
from dpfuse.fleet.serve import run_fleet
from support.fleets import plan

_TWO = 'design = "d"\nkeys = "k"\n[shards.a]\nstreams = ["x"]\nport = 9000\n[shards.b]\n'


def names(fleet_map):
    return {name: dict(entry.streams) for name, entry in fleet_map.shards.items()}


def test_a_fleet_without_its_map_makes_no_ledger_unless_it_is_new(tmp_path):
    lost = replace(plan(north="a"), folder=tmp_path / "fleet")
    with pytest.raises(LedgerMismatch, match="map.json is missing; put the folder of the fleet back"):
        run_fleet(tmp_path / "roads.toml", lost)
    assert not lost.folder.exists()
    FleetMap().save(tmp_path / "map.json")
    with pytest.raises(ValueError, match="map.json is there, so the fleet is not new; start it without --new"):
        run_fleet(tmp_path / "roads.toml", replace(lost, folder=tmp_path), is_new=True)


def test_a_new_fleet_is_refused_where_a_shard_of_another_one_has_its_ledger(tmp_path):
    """The map was deleted: what the ledgers elsewhere had spent would be forgotten."""
    (tmp_path / "north").mkdir()
    (ledger := tmp_path / "north/ledger-1.db").touch()
    with pytest.raises(LedgerMismatch, match=r"north/ledger-1.db is there without .*; put its map.json back, or name"):
        run_fleet(tmp_path / "roads.toml", replace(plan(north="a", south="c"), folder=tmp_path), is_new=True)
    assert set(tmp_path.iterdir()) == {ledger.parent}


@pytest.mark.parametrize(
    "arguments", [["--new", "roads.toml"], ["roads.toml", "--new"], ["run", "--new", "roads.toml"]]
)
def test_options_stand_before_or_after_the_plan(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roads.toml").write_text(_TWO + 'streams = ["y"]\nport = 9010\n')
    (tmp_path / "fleet").mkdir()
    FleetMap().save(tmp_path / "fleet/map.json")
    result = CliRunner().invoke(app, ["fleet", *arguments])
    assert "the fleet is not new" in str(result.exception)
    shown = CliRunner().invoke(app, ["fleet", "--help"])
    assert shown.exit_code == 0 and "status" in shown.output


class TestMap:
    def test_a_stream_that_moves_goes_on_under_a_new_name(self):
        first = FleetMap().follow(plan(north="a b", south="c"))
        moved = first.follow(plan(north="a", south="c b"))
        assert names(first) == {"north": {"a": "a", "b": "b"}, "south": {"c": "c"}}
        assert names(moved) == {"north": {"a": "a"}, "south": {"c": "c", "b": "b.2"}}
        assert names(moved.follow(plan(north="a b", south="c")))["north"] == {"a": "a", "b": "b.3"}
        assert [first.version, moved.version] == [1, 2]

    def test_the_same_plan_changes_nothing(self):
        first = FleetMap().follow(plan(north="a b", south="c"))
        assert first.follow(plan(north="a b", south="c")) == first

    def test_a_stream_that_comes_back_to_its_ledger_has_its_name_and_account_again(self):
        first = FleetMap().follow(plan(bank=None, north="a b"))
        assert names(first.follow(plan(bank=None, north="a")).follow(plan(bank=None, north="a b"))) == names(first)

    @pytest.mark.parametrize("steps", [["a"], ["", "a"]], ids=["moved", "dropped and added elsewhere"])
    def test_without_a_bank_no_stream_leaves_its_ledger(self, steps):
        found = FleetMap().follow(plan(bank=None, north="a b", south="c"))
        with pytest.raises(ValueError, match="stream 'a' must stay in shard 'north', which has its accounts"):
            for own in steps:
                found = found.follow(plan(bank=None, north="b", south=f"c {own}"))

    def test_a_shard_that_the_plan_has_no_more_is_drained_and_keeps_its_ledger(self):
        first = FleetMap().follow(plan(north="a", south="c")).with_made("south")
        drained = first.follow(plan(north="a c")).shards["south"]
        assert drained.is_drained and drained.is_made and not drained.streams
        back = first.follow(plan(north="a c")).follow(plan(north="a", south="c"))
        assert not back.shards["south"].is_drained and names(back)["south"] == {"c": "c.3"}

    def test_a_lost_ledger_is_followed_by_a_new_generation_with_new_names(self):
        first = FleetMap().follow(plan(north="a b", south="c")).with_made("north")
        lost = first.with_new_generation("north")
        assert names(lost) == {"north": {"a": "a.2", "b": "b.2"}, "south": {"c": "c"}}
        assert lost.shards["north"].generation == 2 and not lost.shards["north"].is_made
        assert lost.follow(plan(north="a b", south="c")) == lost

    def test_a_fleet_does_not_look_for_ledgers_where_they_cannot_be(self):
        here = FleetMap().follow(plan(north="a", south="c")).with_made("north")
        here.check_places(is_on_nodes=False)
        with pytest.raises(LedgerMismatch, match=r"shard 'north' has its ledger on the machine .* into map.json"):
            here.check_places(is_on_nodes=True)
        there = here.with_made("north", "10.0.0.4")
        there.check_places(is_on_nodes=True)
        with pytest.raises(LedgerMismatch, match=r"shard 'north' has its ledger on node 10.0.0.4; give --ray"):
            there.check_places(is_on_nodes=False)
        there.follow(plan(south="c")).check_places(is_on_nodes=False)  # north is drained

    def test_a_map_survives_its_file_and_another_file_is_refused(self, tmp_path):
        first = FleetMap().follow(plan(north="a b", south="c")).with_made("north").with_new_generation("north")
        first.save(tmp_path / "map.json")
        assert FleetMap.load(tmp_path / "map.json") == first
        assert FleetMap.load(tmp_path / "none.json") == FleetMap()
        for text in ("{}", "[]", "{", json.dumps({"format": 9})):
            (tmp_path / "map.json").write_text(text)
            with pytest.raises(DpfuseError):
                FleetMap.load(tmp_path / "map.json")


class TestPlan:
    def test_a_file_is_read_relative_to_its_folder(self, tmp_path):
        file = tmp_path / "roads.toml"
        file.write_text(
            'per_address = 9\ndesign = "freeway"\nkeys = "k"\nbank = "postgresql://b@db/x"\ninterval = 0.5\n'
            '[shards.north]\nstreams = ["a"]\nport = 9000\n'
        )
        found = FleetPlan.load(file)
        assert found.keys == tmp_path / "k" and found.folder == tmp_path / "fleet" and found.design == "freeway"
        assert found.per_address == 9 and found.interval_s == 0.5 and found.shards["north"].streams == ("a",)

    def test_an_address_of_every_interface_is_shown_under_the_name_that_the_plan_gives(self, tmp_path):
        hosts = {"0.0.0.0": "roads.example.org", "10.0.0.4": "2001:db8::4"}
        found = replace(plan(north="a"), host="0.0.0.0", hosts=hosts)
        assert found.address == "http://roads.example.org:8000"
        assert found.published("https://0.0.0.0:9000") == "https://roads.example.org:9000"
        assert found.published("http://10.0.0.4:9000") == "http://[2001:db8::4]:9000"
        assert found.published("http://10.0.0.5:9000") == "http://10.0.0.5:9000"

    @pytest.mark.parametrize(
        "text, message",
        [
            ("", "must hold design, keys, shards"),
            ("x =", "is not TOML"),
            ('design = "d"\nkeys = "k"\n[shards]', "at least one shard"),
            ('design = "d"\nkeys = "k"\nlimit = 3\n[shards]', "got limit"),
            ('design = "d"\nkeys = "k"\n[shards.a]\nstreams = ["x.2"]\nport = 9000', "letters, digits"),
            ('design = "d"\nkeys = "k"\n[shards.a]\nstreams = []\nport = 9000', "one or more names"),
            ('design = "d"\nkeys = "k"\n[shards.a]\nstreams = ["x"]', "must be a port"),
            (f'host = "0.0.0.0"\n{_TWO}streams = ["y"]\nport = 9003', 'write hosts = {"0.0.0.0" = '),
            (f'host = "::"\n{_TWO}streams = ["y"]\nport = 9003', "write hosts = "),
            (f'per_address = -1\n{_TWO}streams = ["y"]\nport = 9003', "per_address must be a number of connections"),
            (f'per_address = true\n{_TWO}streams = ["y"]\nport = 9003', "per_address must be a number of connections"),
            (f'hosts = "north"\n{_TWO}streams = ["y"]\nport = 9003', "hosts must be a table of names"),
            (f'hosts = {{"::" = "north:80"}}\n{_TWO}streams = ["y"]\nport = 9003', "without ports"),
            (
                f'{_TWO}streams = ["x"]\nport = 9003',
                "each stream must be in one shard",
            ),
            (
                f'{_TWO}streams = ["y"]\nport = 9002',
                "ports must differ",
            ),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path, text, message):
        (tmp_path / "roads.toml").write_text(text)
        with pytest.raises(ValueError, match=message):
            FleetPlan.load(tmp_path / "roads.toml")
