"""Tokens and the secret that makes them."""

from __future__ import annotations

import hashlib
import hmac
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse.errors import FileRefused
from dpfuse.wire.tokens import Tokens, new_secret


@pytest.fixture
def tokens():
    return Tokens(b"s" * 32)


@given(st.integers(0, 2**63 - 1))
def test_a_token_names_its_sensor(sensor):
    tokens = Tokens(b"s" * 32)
    assert tokens.sensor_of(tokens.issue(sensor)) == sensor


def test_a_token_is_the_documented_hmac(tokens):
    expected = hmac.new(b"s" * 32, b"dpfuse sensor 17", hashlib.sha256).hexdigest()
    assert tokens.issue(17) == f"17.{expected}"


@pytest.mark.parametrize(
    "change",
    [lambda t: "18." + t[3:], lambda t: t[:-1] + ("1" if t[-1] == "0" else "0"), lambda t: "0" + t,
     lambda t: "+" + t,
     lambda t: t.upper(), lambda t: t + "\n", lambda t: " " + t, lambda t: t[3:], lambda t: "", lambda t: "-" + t,
     lambda t: "١٧" + t[2:], lambda t: str(2**63) + t[2:], lambda t: "9" * 5000 + t[2:]],
)  # fmt: skip
def test_any_change_makes_a_token_invalid(tokens, change):
    token = tokens.issue(17)
    assert tokens.sensor_of(token) == 17  # also when it comes from the cache
    assert tokens.sensor_of(change(token)) is None


def test_a_token_of_another_secret_is_invalid(tokens):
    assert tokens.sensor_of(Tokens(b"t" * 32).issue(17)) is None


@pytest.mark.parametrize("sensor", [-1, 2**63, True, 1.0, "1"])
def test_only_valid_ids_get_tokens(tokens, sensor):
    with pytest.raises(ValueError, match="sensor must be a whole number from 0"):
        tokens.issue(sensor)


def test_the_cache_of_tokens_is_bounded_and_holds_valid_tokens_only(tokens, monkeypatch):
    monkeypatch.setattr("dpfuse.wire.tokens._CACHE_SIZE", 3)
    for sensor in range(10):
        assert tokens.sensor_of(tokens.issue(sensor)) == sensor
        tokens.sensor_of(f"{sensor}.{'0' * 64}")
        assert len(tokens._sensors) <= 3
    assert all(token == tokens.issue(sensor) for token, sensor in tokens._sensors.items())


def test_the_repr_does_not_show_the_secret(tokens):
    assert repr(tokens) == "Tokens(...)"


def test_a_secret_is_never_overwritten_and_only_its_owner_may_read_it(tmp_path):
    path = tmp_path / "secret"
    new_secret(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = Tokens.load(path).issue(1)
    with pytest.raises(FileRefused, match="is there already"):
        new_secret(path)
    assert Tokens.load(path).issue(1) == token


def test_a_secret_that_is_missing_malformed_or_readable_by_others_is_refused(tmp_path):
    path = tmp_path / "secret"
    with pytest.raises(FileRefused, match="no secret at .*dpfuse token --new"):
        Tokens.load(path)
    new_secret(path)
    path.chmod(0o640)
    with pytest.raises(FileRefused, match="chmod 600"):
        Tokens.load(path)
    path.chmod(0o600)
    path.write_text("hunter2\n")
    with pytest.raises(FileRefused, match="64 hex digits") as refusal:
        Tokens.load(path)
    assert "hunter2" not in str(refusal.value)
