"""Recovery time after a death: `python -m bench.recovery`.

`engine_deaths`: an engine of a real job is killed, or stopped, while it decodes; measured until its requests
have their next token elsewhere. `return_`: the manager is killed with thousands of requests in flight;
measured until the first new frame is acknowledged. Both are read from outside: from the journal, and from the
instances' ends of the streams.
"""
