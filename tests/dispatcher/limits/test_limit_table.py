"""The operator's file of limits: what it says, and what is refused."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.dispatcher.limits.limit_table import KEYS, NO_LIMITS, LimitTable, PrincipalLimits, parse_limits
from gt.dispatcher.limits.limits_file import LimitsFile, read_limits, uids_of
from gt.errors import ConfigError

TEMPLATE = Path(__file__).parents[3] / "configs" / "limits.yaml"
PEOPLE = {("user", "alice"): {7}, ("group", "students"): {7, 8, 9}, ("group", "night"): {9, 10}}


def lookup(kind: str, name: str) -> Collection[int]:
    return PEOPLE[kind, name]


def read(text: str) -> LimitTable:
    return parse_limits(text, "limits.yaml", lookup)


def test_a_row_adds_to_the_default_and_its_own_one_counts_before_that_of_a_group() -> None:
    table = read(
        """
default: {sessions: 4, weight: 0.5}
principals:
  group:students: {priority: batch, workers: 2}
  group:night: {priority: normal}
  user:alice: {weight: 3, sessions: unlimited}
  uid:8: {live_bytes: 2GiB, when_full: refuse}
  key:ci: {reserved: 0.25, instructions_per_second: 1000}
"""
    )
    assert table.of("user 1") == PrincipalLimits(0.5, sessions=4)
    assert table.of("user 7") == PrincipalLimits(3.0)
    assert table.of("user 8") == PrincipalLimits(0.5, live_bytes=2 << 30, sessions=4, when_full="refuse")
    assert table.of("user 9") == PrincipalLimits(0.5, workers=2, sessions=4, priority="batch")
    assert table.of("user 10") == PrincipalLimits(0.5, sessions=4, priority="normal")
    assert table.of("key ci") == PrincipalLimits(0.5, 0.25, sessions=4, instructions_per_second=1000.0)


def test_all_mistakes_are_told_at_once_with_their_lines() -> None:
    with pytest.raises(ConfigError) as refused:
        read(
            """default: {session: 4, reserved: 0.1}
principals:
  somebody: {}
  user:bob: {}
  uid:1: {weight: 0, live_bytes: much, workers: 0, priority: urgent}
  uid:2: [1]
  uid:3: {reserved: 0.6}
  uid:4: {reserved: 0.5}
"""
        )
    assert str(refused.value).splitlines() == [
        "limits.yaml:1: default.session: unknown key, did you mean sessions?; allowed: " + ", ".join(KEYS),
        "limits.yaml:1: default.reserved: is for one principal alone; allowed: in a row of uid:, user: or key:",
        "limits.yaml:2: principals: reserves 1.1 in all; allowed: at most 0.9",
        "limits.yaml:3: principals.somebody: is no principal; allowed: uid:NUMBER, user:NAME, key:NAME, group:NAME",
        "limits.yaml:4: principals.'user:bob': there is no user 'bob' on this machine; allowed: a user that `getent` knows",
        "limits.yaml:5: principals.'uid:1'.weight: 0 is no weight; allowed: a number from 0.01 to 100",
        "limits.yaml:5: principals.'uid:1'.live_bytes: 'much' is no live bytes; allowed: " + KEYS["live_bytes"].allowed,
        "limits.yaml:5: principals.'uid:1'.workers: 0 is no workers; allowed: a whole number from 1, or unlimited",
        "limits.yaml:5: principals.'uid:1'.priority: 'urgent' is no priority; allowed: interactive, normal, batch",
        "limits.yaml:6: principals.'uid:2': a list is not a mapping; allowed: a mapping",
    ]


@pytest.mark.parametrize("text", ["", "default:", "principals:", "default: {}\nprincipals: {uid:1: }"])
def test_what_says_nothing_limits_nobody(text: str) -> None:
    assert read(text).of("user 1") == NO_LIMITS


@settings(max_examples=25, deadline=None)
@given(st.text("defaultprincipals: {}[]&*!#-\n'\"0", max_size=40))
def test_any_text_is_a_table_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(read(text), LimitTable)


def test_the_template_is_right() -> None:
    assert read_limits(TEMPLATE).of("user 1000").weight == 2


def test_a_changed_file_is_read_again_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text("default: {weight: 2}")
    file = LimitsFile(path)
    assert file.table.default.weight == 2
    assert file.look() is None
    path.write_text("default: {weight: 33}")
    found = file.look()
    assert found is not None
    assert found.default.weight == 33
    path.write_text("default: {weight: heavy}")
    assert file.look() is None
    path.unlink()
    assert file.look() is None
    path.write_text("default: {weight: 4}")
    found = file.look()
    assert found is not None
    assert found.default.weight == 4


def test_users_and_groups_are_those_of_this_machine() -> None:
    here = pwd.getpwuid(os.geteuid())
    assert uids_of("user", here.pw_name) == {here.pw_uid}
    with pytest.raises(KeyError):
        uids_of("group", "no such group")
