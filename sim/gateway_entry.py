"""Gateway entry: the HTTP server of a simulated gateway, with production's routes, keys and limits.

Owns what it is made of here: the simulated network and clock, ids from the seed, the modelled tokenizer.
"""

import random
from collections.abc import Callable

from gleaner.actors.gateway.access import Access
from gleaner.actors.gateway.ask import Requests
from gleaner.actors.gateway.calls import HandlerContext
from gleaner.actors.gateway.fleet import Fleet
from gleaner.actors.gateway.gateway import HttpEntry, MakeHttpEntry
from gleaner.actors.gateway.routes import ROUTES
from gleaner.actors.gateway.server import HttpServer
from gleaner.configs.schema import Config
from gleaner.nodeagent.gateway_http import GatewayHttp, address_of, served_model
from gleaner.sim.http_listening import HttpListening
from gleaner.sim.models.vocabulary import SimVocabulary

API_KEY = "simulated-key"
"""The key that clients of a simulated gateway need."""
MODEL = "simulated"


def entry_of(
    config: Config, run: str, listening: HttpListening, wall_s: Callable[[], float], rng: random.Random
) -> MakeHttpEntry:
    """Makes the entry of a gateway. listening: of its process. rng: for the ids of requests."""

    def make(requests: Requests, fleet: Fleet) -> HttpEntry:
        desk = HandlerContext(
            requests,
            fleet,
            config.gateway,
            served_model(config, MODEL, (0, 0), run),
            SimVocabulary(),
            wall_s=wall_s,
            new_id=lambda: f"{rng.getrandbits(128):032x}",
        )
        host, port = address_of(config.gateway.listen)
        return GatewayHttp(HttpServer(desk, ROUTES, Access(keys=[API_KEY]), listening=listening), host, port)

    return make
