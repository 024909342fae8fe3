"""Limits that no principal can use up, nor a program its principal's part: each may hold nine tenths of what the others leave.

A limit on things that are held at one time (`refusal`) is a number that all share. A limit on how often something happens
(`gt/daemon/rate_limit.py`) is one for each principal, and a smaller one for each of its programs. So whoever opens sessions
without end leaves room for others, and a runaway program leaves room for its owner's other programs.
"""

from __future__ import annotations

from collections.abc import Collection

from gt.wire.principals import ProgramIdentity


def allowance(limit: int, others: int) -> int:
    """How many of `limit` things one may hold when the others hold so many: all that is left but a tenth."""
    left = max(0, limit - others)
    return left - left // 10


def refusal(limit: int, holders: Collection[ProgramIdentity], program: ProgramIdentity) -> str | None:
    """Who holds too many of `limit` things for `program` to get one more: 'everybody', 'this user' or 'this program'; None:
    there is room. `holders` has one entry for each thing."""
    if len(holders) >= limit:
        return "everybody"
    principal = own = 0
    for each in holders:
        if each.principal == program.principal:
            principal += 1
            own += each == program
    share = allowance(limit, len(holders) - principal)
    if principal >= share:
        return "this user"
    if own >= allowance(share, principal - own):
        return "this program"
    return None


def equal_part(most: int, total: int, among: int) -> int:
    """How many bytes, at most `most`, one of so many sessions of a principal may have of `total`."""
    return min(most, total // max(1, among))
