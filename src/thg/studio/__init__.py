"""A local web page that compares plain guidance and thg interactively: `thg studio`.

`specs` defines the requests, `planning` turns them into plans, `model` is the loaded pipeline, `engine` runs both
sides, `results` encodes what they make, `jobs` queues the runs, `gate` controls access, `app` is the HTTP interface of
the page in `static`.
"""
