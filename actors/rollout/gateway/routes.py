"""Routes of every wire on the gateway's one port, with the document of them all.

Adapter.
"""

from gleaner.actors.rollout.gateway import (
    absent_routes,
    control_routes,
    metrics_routes,
    openai_routes,
    responses_routes,
    sglang_routes,
    trl_routes,
    vllm_routes,
)
from gleaner.actors.rollout.gateway.openapi import with_document

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
