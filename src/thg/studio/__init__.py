"""A local page on which plain guidance and thg are seen side by side, live: `thg studio`.

`specs` says what a page may ask for, `plans` turns its wishes into plans, `engine` runs both sides, `jobs` lets one
run at a time through, `gate` keeps strangers out, `app` speaks HTTP, `pages` hands out the page in `static`.
"""
