"""Block caches inside a network (DeepCache, cache-dit, diffusers' `enable_cache`), so that thg works with them.

A cache keeps features of its input rows, and decides at each call whether to reuse them. Two rules make it compatible
with leaps; both were chosen by measurement (docs/log.md):

- Where the hare is evaluated, both branches are computed in full. The guidance term is a small difference, is
  multiplied by w - 1, and is used for a whole leap: features of different age in the two branches corrupt it.
- In between, the cache acts on the conditional rows only, with its own schedule. The unconditional call is made
  separately, on an empty cache that is discarded afterwards, so that the cache counts the calls of one branch.

In a run without leaps the cache is not changed; in others it starts empty, and is left empty. One module per cache
library (`deepcache`, `cache_dit`, `hooks` of diffusers) implements how to make it compute everything and how to set its
state aside; `known` combines them, and `calls` uses them in a run.
"""

from thg.adapter.caches.calls import CachedNetwork
from thg.adapter.caches.known import Caches, caches_for, caches_in

__all__ = ["CachedNetwork", "Caches", "caches_for", "caches_in"]
