"""Unsupported routes: control routes of other servers; a reason, not a bare 404.

Owns their list. Adapter.
"""

from aiohttp import web

from gleaner.actors.gateway.calls import Call, Route


async def absent(call: Call) -> web.StreamResponse:
    raise web.HTTPNotFound(
        text=f"{call.request.path} is not served: engines behind this gateway come and go, so it joins no "
        "group of processes and holds no memory of theirs; give weights as files (/update_weights_from_disk)"
    )


ABSENT = (
    "/init_weights_update_group",
    "/destroy_weights_update_group",
    "/update_weights_from_distributed",
    "/update_weights_from_tensor",
    "/update_weights_from_ipc",
    "/begin_weight_update",
    "/end_weight_update",
    "/post_process_weights",
    "/weights_checker",
    "/init_broadcaster",
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/finish_weight_update",
    "/init_communicator/",
    "/update_named_param/",
    "/areal_init_weights_update_group",
    "/areal_set_update_weight_meta",
    "/areal_update_weights_xccl",
    "/collective_rpc",
    "/release_memory_occupation",
    "/resume_memory_occupation",
    "/sleep",
    "/wake_up",
    "/load_lora_adapter",
    "/unload_lora_adapter",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/start_profile",
    "/stop_profile",
)

ASKED = ("/get_world_size", "/get_world_size/")
"""By GET: their callers intend to form a process group with the engines."""

ROUTES = (
    *(Route("POST", path, absent, "Not served; the answer has the reason.") for path in ABSENT),
    *(Route("GET", path, absent, "Not served; the answer has the reason.") for path in ASKED),
)
