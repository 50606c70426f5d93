"""Actor runtimes side by side: Gleaner, Ray, Monarch, xoscar, Dask actors, and raw pyzmq as the limit.

`rows` says what is measured and what is aimed at; `on_NAME` measures one system, in its own environment;
`harness` lets them take turns; `table`, `figure` and `page` show what came out.
"""
