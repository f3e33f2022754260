"""Block caches inside a network (DeepCache, cache-dit, diffusers' `enable_cache`), so that thg works with them.

A cache keeps features of the rows that it saw, and decides at each call whether to use them again. Two rules make it
fit to a run with leaps; both were chosen by measurement (docs/log.md):

- Where the hare is evaluated, both branches are computed in full. The guidance term is a small difference, is
  multiplied by w - 1, and is used for a whole leap: features of different age in the two branches spoil it.
- In between, the cache serves the conditional rows alone and keeps its own rhythm. The unconditional call is made
  apart, on an empty cache that is thrown away after it, so that the cache counts the calls of one branch.

A run without leaps needs none of this, and the cache is left alone. One module per program (`deepcache`, `cache_dit`,
`hooks` of diffusers) says how it is made to compute everything and how its state is put aside; `known` has them
together, `calls` uses them in a run, and `unknown` names what else sits in a network, for the message when a leap
breaks.
"""

from thg.adapter.caches.calls import CachedNetwork

__all__ = ["CachedNetwork"]
