"""Control routes, compatible with SGLang, its router, vLLM and their trainers.

Owns what each of them means for a fleet that changes by itself: workers, loads, aborts, pauses, weights,
health. The gateway is the one worker that its clients see: they abort and drain by the urls in `/workers`,
and only the gateway knows all requests. Every call is idempotent. Adapter.
"""

import msgspec
from aiohttp import web

from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.gateway.calls import Call, Route, json
from gleaner.actors.gateway.control import wire
from gleaner.actors.gateway.fleet import FleetAway, FleetError, UnknownWorker

SELF = "gateway"
"""Id of the gateway as a worker."""


# -- workers --


async def workers(call: Call) -> web.StreamResponse:
    model, fleet = call.desk.served.model, call.desk.fleet
    engines = [wire.WorkerIs.of(worker, model) for worker in await fleet.workers()]
    if call.query(wire.WorkersQuery).engines:
        return json(wire.WorkersAre.of(engines))
    load = await fleet.loads()
    version = (await fleet.versions()).applied
    this = wire.WorkerIs(
        id=SELF,
        url=call.url,
        incarnation=0,
        model_id=model,
        is_healthy=any(engine.is_healthy for engine in engines),
        load=load.running + load.waiting,
        runtime_type="gleaner",
        weight_version=None if version is None else str(version),
    )
    return json(wire.WorkersAre.of([this]))


async def worker(call: Call) -> web.StreamResponse:
    name = call.request.match_info["worker"]
    for one in await call.desk.fleet.workers():
        if name in (one.id, one.url):
            return json(wire.WorkerIs.of(one, call.desk.served.model))
    raise UnknownWorker(f"no worker {name}")


async def add_worker(call: Call) -> web.StreamResponse:
    body = await call.body(wire.AddWorker)
    url = body.url or body.worker_url or call.request.query.get("url", "")
    if not url:
        raise BadAsk("expected the url of an engine", "url")
    if body.worker_type != "regular":
        raise BadAsk(f"workers are regular ones here, not {body.worker_type!r}", "worker_type")
    known = {one.url for one in await call.desk.fleet.workers()}
    added = await call.desk.fleet.add(url, body.api_key or "")
    status = "known" if added.url in known else "added"
    return json(wire.WorkerTaken(status=status, worker_id=added.id, url=added.url), 202)


async def remove_worker(call: Call) -> web.StreamResponse:
    name = call.request.match_info.get("worker", "") or call.request.query.get("url", "")
    if not name:
        body = await call.body(wire.AddWorker)
        name = body.url or body.worker_url
    if not name:
        raise BadAsk("expected the url of an engine", "url")
    status = "removed"
    try:
        await call.desk.fleet.remove(name)
    except UnknownWorker:  # a repeated removal
        status = "absent"
    return json(wire.WorkerTaken(status=status, worker_id=name, url=name))


async def list_workers(call: Call) -> web.StreamResponse:
    return json(wire.Urls([call.url]))


# -- requests --


async def abort(call: Call) -> web.StreamResponse:
    body = await call.body(wire.AbortBody)
    if not body.abort_all and not body.rid:
        raise BadAsk("give rid or abort_all", "rid")
    await call.desk.requests.abort(None if body.abort_all else [body.rid])
    return web.Response()


async def _load(call: Call) -> wire.LoadIs:
    load = await call.desk.fleet.loads()
    total = load.running + load.waiting
    return wire.LoadIs(num_reqs=total, num_running_reqs=load.running, num_waiting_reqs=load.waiting)


async def loads(call: Call) -> web.StreamResponse:
    return json(wire.LoadsAre(timestamp=call.desk.wall_s(), loads=[await _load(call)]))


async def get_load(call: Call) -> web.StreamResponse:
    return json([await _load(call)])


async def pause(call: Call) -> web.StreamResponse:
    mode = call.query(wire.PauseQuery).mode or (await call.body(wire.PauseBody)).mode
    count = await call.desk.fleet.pause(wire.mode_of(mode))
    return json(wire.Paused(message="nothing new is begun until it is continued", num_paused_requests=count))


async def resume(call: Call) -> web.StreamResponse:
    await call.desk.fleet.resume()
    return json(wire.Paused(message="goes on"))


async def flush(call: Call) -> web.StreamResponse:
    return json(wire.Paused(message="caches belong to versions of the weights: there is nothing to flush"))


# -- weights --


async def from_disk(call: Call) -> web.StreamResponse:
    body = await call.body(wire.FromDisk)
    if body.abort_all_requests:
        await call.desk.requests.abort(None)
    return await _update(call, body.model_path, wire.version_of(body.weight_version, "weight_version"))


async def pull(call: Call) -> web.StreamResponse:
    body = await call.body(wire.Pull)
    path = body.source_dir or body.local_checkpoint_dir
    return await _update(call, path, wire.version_of(body.target_version, "target_version"))


async def update(call: Call) -> web.StreamResponse:
    body = await call.body(wire.WeightDir)
    if body.weight_dir is None:
        raise BadAsk("expected a directory: weights are pulled from files here, not broadcast", "weight_dir")
    try:
        version = wire.version_of(body.weight_dir.rstrip("/").rpartition("/")[2], "weight_dir")
    except BadAsk:
        version = None
    return await _update(call, body.weight_dir, version)


async def fetch(call: Call) -> web.StreamResponse:
    body = await call.body(wire.FetchWeights)
    path = body.uri or body.sync_dir or ""
    return await _update(call, path, wire.version_of(body.target_version, "target_version"))


async def _update(call: Call, path: str, version: int | None) -> web.StreamResponse:
    if not path:
        raise BadAsk("expected the path of a checkpoint", "model_path")
    served = await call.desk.fleet.update_weights(path, version)
    return json(wire.Updated(success=True, message=f"version {served} is served", weight_version=str(served)))


# -- description of the server --


async def server_info(call: Call) -> web.StreamResponse:
    served = call.desk.served
    try:
        applied, reason = (await call.desk.fleet.versions()).applied, None
    except FleetAway as problem:
        applied, reason = None, str(problem)
    info = wire.ServerInfo(
        model_path=served.model,
        served_model_name=served.model,
        weight_version="" if applied is None else str(applied),
        context_length=served.max_model_len,
        max_req_input_len=served.max_prompt_tokens + 1,
        enable_return_routed_experts=served.routed_experts,
        ready=applied is not None,
        applied=None if applied is None else f"{served.run}/weight_v{applied:06d}",
        reason=reason or (None if applied is not None else "no engine serves any weights yet"),
    )
    whole: dict[str, object] = {**msgspec.to_builtins(info), **served.info}
    return web.Response(body=msgspec.json.encode(whole), content_type="application/json")


async def model_info(call: Call) -> web.StreamResponse:
    served = call.desk.served
    return json(
        wire.ModelInfo(
            model_path=served.model,
            tokenizer_path=served.model,
            weight_version=await _version(call),
            max_model_len=served.max_model_len,
        )
    )


async def weight_version(call: Call) -> web.StreamResponse:
    return json(wire.WeightVersionIs(await _version(call)))


async def _version(call: Call) -> str:
    applied = (await call.desk.fleet.versions()).applied
    return "" if applied is None else str(applied)


async def health(call: Call) -> web.StreamResponse:
    reason = "no engine serves any weights yet"
    try:
        if (await call.desk.fleet.versions()).applied is not None:
            return json(wire.Ready(True))
    except FleetError as problem:
        reason = str(problem)
    return json(wire.Ready(False, reason), 503)


async def health_generate(call: Call) -> web.StreamResponse:
    await call.desk.fleet.probe()
    return web.Response()


async def liveness(call: Call) -> web.StreamResponse:
    return json(wire.Life())


ROUTES = (
    Route("GET", "/workers", workers, "The gateway as the one worker, or the engines behind it.",
          query=wire.WorkersQuery, answer=wire.WorkersAre),
    *(Route("POST", path, add_worker, "Use an engine.", wire.AddWorker, answer=wire.WorkerTaken, status=202,
            kind="change")
      for path in ("/workers", "/add_worker")),
    Route("GET", "/workers/{worker:.+}", worker, "One engine, by id or url.", answer=wire.WorkerIs),
    Route("DELETE", "/workers/{worker:.+}", remove_worker, "Use an engine no longer, by id or url.",
          answer=wire.WorkerTaken, kind="change"),
    Route("POST", "/remove_worker", remove_worker, "Use an engine no longer.", wire.AddWorker,
          answer=wire.WorkerTaken, kind="change"),
    Route("GET", "/list_workers", list_workers, "The gateway's own url.", answer=wire.Urls),
    Route("POST", "/abort_request", abort, "End requests with what they have.", wire.AbortBody,
          kind="change"),
    Route("GET", "/v1/loads", loads, "How many requests there are.", answer=wire.LoadsAre),
    Route("GET", "/get_load", get_load, "How many requests there are, as a list of one.",
          answer=wire.LoadIs, many=True),
    *(Route("POST", path, pause, "Begin nothing new until it is continued.", wire.PauseBody,
            wire.PauseQuery, wire.Paused, kind="change")
      for path in ("/pause_generation", "/pause", "/areal_pause_generation")),
    *(Route("POST", path, resume, "Go on after a pause.", answer=wire.Paused, kind="change")
      for path in ("/continue_generation", "/resume", "/areal_continue_generation")),
    *(Route(method, "/flush_cache", flush, "Nothing: caches belong to versions.", answer=wire.Paused,
            kind="change")
      for method in ("GET", "POST")),
    *(Route("POST", path, from_disk, "Serve the checkpoint at a path.", wire.FromDisk, answer=wire.Updated,
            kind="change")
      for path in ("/update_weights_from_disk", "/areal_update_weights")),
    Route("POST", "/pull_weights", pull, "Serve the checkpoint at a path.", wire.Pull, answer=wire.Updated,
          kind="change"),
    Route("POST", "/update_weights", update, "Serve the checkpoint at a path.", wire.WeightDir,
          answer=wire.Updated, kind="change"),
    Route("POST", "/fetch_weights", fetch, "Serve the checkpoint at a path.", wire.FetchWeights,
          answer=wire.Updated, kind="change"),
    *(Route("GET", path, server_info, "What is served, in the words of SGLang's arguments.",
            answer=wire.ServerInfo) for path in ("/server_info", "/get_server_info")),
    *(Route("GET", path, model_info, "Which model is served.", answer=wire.ModelInfo)
      for path in ("/model_info", "/get_model_info")),
    Route("GET", "/get_weight_version", weight_version, "The newest version that is served.",
          answer=wire.WeightVersionIs),
    *(Route("GET", path, health, "Whether an engine serves.", answer=wire.Ready, kind="open", down=wire.Ready)
      for path in ("/health", "/readiness")),
    Route("GET", "/health_generate", health_generate, "Whether an engine makes a token.", kind="data"),
    Route("GET", "/liveness", liveness, "Whether the gateway lives.", answer=wire.Life, kind="open"),
)  # fmt: skip
