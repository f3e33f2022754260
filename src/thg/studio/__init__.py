"""A local web page that compares plain guidance and thg interactively: `thg studio`.

`specs` defines the requests, `plans` turns them into plans, `engine` runs both sides, `jobs` queues the runs, `gate`
controls access, `app` is the HTTP interface, `pages` serves the files in `static`.
"""
