"""Actor runtimes compared: Gleaner, Ray, Monarch, xoscar, Dask and raw pyzmq.

Raw pyzmq is the limit. `rows` defines the measurements and the goals; `on_NAME` measures one system, in its
own environment; `harness` alternates between them; `table`, `figure` and `page` show the results.
"""
