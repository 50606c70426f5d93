"""Routes of every wire on the gateway's one port, with the document of them all.

Adapter.
"""

from gleaner.actors.gateway import metrics_routes
from gleaner.actors.gateway.control import routes as control_routes
from gleaner.actors.gateway.control import unsupported_routes as absent_routes
from gleaner.actors.gateway.openai import responses_routes
from gleaner.actors.gateway.openai import routes as openai_routes
from gleaner.actors.gateway.openapi import with_document
from gleaner.actors.gateway.sglang import routes as sglang_routes
from gleaner.actors.gateway.trl import routes as trl_routes
from gleaner.actors.gateway.vllm import routes as vllm_routes

ROUTES = with_document(
    (
        *sglang_routes.ROUTES,
        *openai_routes.ROUTES,
        *responses_routes.ROUTES,
        *vllm_routes.ROUTES,
        *trl_routes.ROUTES,
        *control_routes.ROUTES,
        *metrics_routes.ROUTES,
        *absent_routes.ROUTES,
    )
)
