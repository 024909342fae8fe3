"""Sharding configs and run-time options, under the name by which programs import them."""

from __future__ import annotations

from gt.service.run_options import get, set
from gt.sharding.config import Config, ExplicitShard, Rule, SignalConfig, load, parse

__all__ = ["Config", "ExplicitShard", "Rule", "SignalConfig", "get", "load", "parse", "set"]
