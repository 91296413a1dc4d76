"""Keys and origins."""

from __future__ import annotations

import hashlib

import pytest

from turnwire.errors import AuthenticationError, OriginError
from turnwire.policy.auth import ANONYMOUS, KeyRing, OriginPolicy

KEY = "sk-0123456789abcdef"
HASHED = "sha256:" + hashlib.sha256(b"sk-hashed-0123456789").hexdigest()


def test_without_keys_everyone_is_anonymous():
    ring = KeyRing({})
    for header in (None, "Bearer x", "nonsense"):
        assert ring.identify(header) is ANONYMOUS


@pytest.mark.parametrize("listener", [None, "127.0.0.1", "::1", "/run/x.sock", "testserver"])
def test_anonymous_callers_come_from_this_machine(listener):
    assert KeyRing({}).identify(None, listener=listener) is ANONYMOUS


@pytest.mark.parametrize("listener", ["10.0.0.7", "2001:db8::1", "0.0.0.0"])
def test_anonymous_callers_from_elsewhere_need_a_gate_of_your_own(listener):
    with pytest.raises(AuthenticationError):
        KeyRing({}).identify("Bearer x", listener=listener)
    assert KeyRing({}, everywhere=True).identify(None, listener=listener) is ANONYMOUS
    assert KeyRing({"me": KEY}).identify(f"Bearer {KEY}", listener=listener).name == "me"


def test_each_key_is_its_own_principal():
    ring = KeyRing({"plain": KEY, "hashed": HASHED})
    assert ring.identify(f"Bearer {KEY}").name == "plain"
    assert ring.identify(f"bearer   {KEY} ").name == "plain"
    assert ring.identify("Bearer sk-hashed-0123456789").name == "hashed"


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", f"Basic {KEY}", KEY, f"Bearer {KEY}0", f"Bearer {HASHED}"],
)
def test_anything_else_is_refused(header):
    ring = KeyRing({"plain": KEY, "hashed": HASHED})
    with pytest.raises(AuthenticationError) as refused:
        ring.identify(header)
    assert KEY not in refused.value.message


def test_a_key_ring_keeps_no_key():
    assert KEY not in str(vars(KeyRing({"plain": KEY})))


@pytest.mark.parametrize("origin", ["null", "https://evil.example", ""])
def test_no_origin_is_allowed_by_default(origin):
    OriginPolicy(()).check(None)
    with pytest.raises(OriginError):
        OriginPolicy(()).check(origin)
