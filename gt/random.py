"""The state of the random numbers, under the name by which programs import it."""

from __future__ import annotations

from gt.client.ops.random import fork_rng, get_rng_state, initial_seed, manual_seed, seed, set_rng_state

__all__ = ["fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]
