"""The control routes, as SGLang's router, slime, ROLL, AReaL, prime-rl and SkyRL call them."""

from collections import Counter
from dataclasses import replace
from urllib.parse import quote

import pytest

from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.gateway.control.routes import SELF
from gleaner.actors.gateway.control.unsupported_routes import ABSENT
from gleaner.actors.gateway.control.wire import mode_of, version_of
from gleaner.actors.gateway.fleet import CannotLoad, Failed, FleetAway, FleetError, VersionTaken
from gleaner.actors.gateway.routes import ROUTES
from tests.actors.gateway.gateway_world import FakeFleet, World, serving

ENGINE = "http://10.0.0.5:30000"


async def call(world: World, method: str, path: str, body: object = None) -> tuple[int, object]:
    async with world.client.request(method, world.url + path, json=body) as response:
        text = await response.text()
        return response.status, await response.json() if text else ""


def test_no_two_routes_answer_the_same() -> None:
    assert [key for key, times in Counter((it.method, it.path) for it in ROUTES).items() if times > 1] == []
    for path in ("/generate", "/v1/completions", "/v1/chat/completions", "/inference/v1/generate"):
        assert ("POST", path) in {(route.method, route.path) for route in ROUTES}, path


async def test_workers_are_added_and_removed_by_id_or_url() -> None:
    async with serving(ROUTES) as world:
        status, added = await call(world, "POST", "/workers", {"url": ENGINE, "worker_type": "regular"})
        assert (status, added) == (202, {"status": "added", "worker_id": "w1", "url": ENGINE})
        _, again = await call(world, "POST", f"/add_worker?url={quote(ENGINE, safe='')}")
        assert again == {"status": "known", "worker_id": "w1", "url": ENGINE}
        _, one = await call(world, "GET", f"/workers/{quote(ENGINE, safe='')}")
        assert (one["incarnation"], one["is_healthy"]) == (1, True)  # type: ignore[index]
        for status in ("removed", "absent"):
            code, gone = await call(world, "DELETE", f"/workers/{quote(ENGINE, safe='')}")
            assert (code, gone["status"]) == (200, status)  # type: ignore[index]
        await call(world, "POST", "/add_worker", {"worker_url": ENGINE})
        _, gone = await call(world, "DELETE", "/workers/w1")
        assert gone["status"] == "removed"  # type: ignore[index]
        assert (await call(world, "GET", "/workers/w1"))[0] == 404
        assert (await call(world, "POST", "/workers", {"url": ENGINE, "worker_type": "prefill"}))[0] == 400
        assert (await call(world, "POST", "/workers", {}))[0] == 400


async def test_gateway_lists_itself_as_the_only_worker() -> None:
    async with serving(ROUTES) as world:
        await world.fleet.add(ENGINE)
        world.fleet.known["w1"] = replace(world.fleet.known["w1"], running=3, waiting=2)
        _, listed = await call(world, "GET", "/workers")
        (worker,) = listed["workers"]  # type: ignore[index]
        assert (worker["id"], worker["url"], worker["load"]) == (SELF, world.url, 5)
        assert listed["total"] == 1  # type: ignore[index]
        _, engines = await call(world, "GET", "/workers?engines=true")
        assert [one["url"] for one in engines["workers"]] == [ENGINE]  # type: ignore[index]
        assert await call(world, "GET", "/list_workers") == (200, {"urls": [world.url]})


async def test_end_of_a_round_aborts_all_and_counts_leftovers() -> None:
    async with serving(ROUTES) as world:
        assert await call(world, "POST", "/abort_request", {"abort_all": True}) == (200, "")
        assert await call(world, "POST", "/abort_request", {"rid": "r1"}) == (200, "")
        assert world.requests.aborted == [None, ["r1"]]
        assert (await call(world, "POST", "/abort_request", {}))[0] == 400
        await world.fleet.add(ENGINE)
        world.fleet.known["w1"] = replace(world.fleet.known["w1"], running=3, waiting=2)
        load = {"dp_rank": 0, "num_reqs": 5, "num_running_reqs": 3, "num_waiting_reqs": 2}
        _, loads = await call(world, "GET", "/v1/loads?include=core&dp_rank=0")
        assert loads["loads"] == [load]  # type: ignore[index]
        assert await call(world, "GET", "/get_load") == (200, [load])


@pytest.mark.parametrize(
    ("path", "body", "mode"),
    [
        ("/pause_generation", {}, "abort"),
        ("/pause_generation", {"mode": "retract"}, "keep"),
        ("/pause_generation", {"mode": "in_place"}, "keep"),
        ("/pause?mode=keep&clear_cache=false", None, "keep"),
        ("/pause?mode=wait", None, "wait"),
    ],
)
async def test_pauses_of_both_families_are_equivalent(path: str, body: object, mode: str) -> None:
    async with serving(ROUTES) as world:
        for _ in range(2):
            status, _ = await call(world, "POST", path, body)
            assert status == 200
        for path in ("/continue_generation", "/resume"):
            assert (await call(world, "POST", path, {}))[0] == 200
        assert world.fleet.paused == [mode, mode, "resumed", "resumed"]
        assert (await call(world, "POST", "/pause?mode=sideways"))[0] == 400
        assert (await call(world, "GET", "/flush_cache"))[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "called"),
    [
        ("/update_weights_from_disk", {"model_path": "/w/5", "load_format": "auto"}, ("/w/5", None)),
        ("/update_weights_from_disk", {"model_path": "/w/5", "weight_version": "7"}, ("/w/5", 7)),
        ("/pull_weights", {"local_checkpoint_dir": "/l", "source_dir": "/s", "target_version": 8}, ("/s", 8)),
        ("/update_weights", {"weight_dir": "/b/step_12"}, ("/b/step_12", 12)),
        ("/update_weights", {"weight_dir": "/b/final"}, ("/b/final", None)),
        ("/fetch_weights", {"target_version": "run/weight_v000009", "uri": "/u"}, ("/u", 9)),
    ],
)
async def test_weight_routes_all_pull_a_version(
    path: str, body: object, called: tuple[str, int | None]
) -> None:
    async with serving(ROUTES) as world:
        status, answer = await call(world, "POST", path, body)
        assert (status, answer["success"]) == (200, True)  # type: ignore[index]
        assert world.fleet.updates == [called]
        assert answer["weight_version"] == str(called[1] or 4)  # type: ignore[index]


@pytest.mark.parametrize(
    ("problem", "status", "retryable"),
    [
        (CannotLoad("version 5 is not served: no file"), 400, False),
        (VersionTaken("version 5 was published before"), 409, False),
        (Failed("no engine"), 503, True),
    ],
)
async def test_unserved_weights_are_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, problem: FleetError, status: int, retryable: bool
) -> None:
    async def fail(*_: object) -> int:
        raise problem

    async with serving(ROUTES) as world:
        monkeypatch.setattr(world.fleet, "update_weights", fail)
        answer = await call(world, "POST", "/update_weights_from_disk", {"model_path": "/w"})
        assert answer[0] == status
        error = answer[1]["error"]  # type: ignore[index]
        assert (error["message"], error["retryable"]) == (str(problem), retryable)
        body = {"model_path": "/w", "weight_version": "v1.2.10"}
        status, answer = await call(world, "POST", "/update_weights_from_disk", body)
        assert (status, answer["error"]["param"]) == (400, "weight_version")  # type: ignore[index]


async def test_areal_update_aborts_running_requests_and_broadcast_is_refused() -> None:
    async with serving(ROUTES) as world:
        body = {"model_path": "/w", "abort_all_requests": True}
        assert (await call(world, "POST", "/update_weights_from_disk", body))[0] == 200
        assert world.requests.aborted == [None]
        status, answer = await call(world, "POST", "/update_weights", {"weight_dir": None})
        assert (status, answer["error"]["param"]) == (400, "weight_dir")  # type: ignore[index]
        for path in ABSENT:
            status, answer = await call(world, "POST", path, {"group_name": "g"})
            assert status == 404
            assert path in answer["error"]["message"]  # type: ignore[index]


async def test_job_gateway_refuses_changes_of_weights_and_engines() -> None:
    async with serving(ROUTES, fleet=FakeFleet(open=False)) as world:
        for method, path, body in (
            ("POST", "/update_weights_from_disk", {"model_path": "/w"}),
            ("POST", "/workers", {"url": ENGINE}),
            ("DELETE", "/workers/w1", None),
        ):
            status, answer = await call(world, method, path, body)
            assert (status, answer["error"]["type"]) == (409, "NotHere")  # type: ignore[index]
            assert answer["error"]["retryable"] is False  # type: ignore[index]


async def test_served_model_is_described_for_sglang_and_stitch() -> None:
    async with serving(ROUTES) as world:
        for path in ("/server_info", "/get_server_info"):
            _, info = await call(world, "GET", path)
            sizes = {key: info[key] for key in ("tp_size", "pp_size", "num_gpus", "ep_size", "moe_dp_size")}  # type: ignore[index]
            assert set(sizes.values()) == {1}
            assert (info["disaggregation_mode"], info["enable_memory_saver"]) == ("null", False)  # type: ignore[index]
            assert (info["ready"], info["applied"]) == (True, "test/weight_v000003")  # type: ignore[index]
        for path in ("/model_info", "/get_model_info"):
            _, model = await call(world, "GET", path)
            assert (model["weight_version"], model["max_model_len"]) == ("3", 192)  # type: ignore[index]
        assert await call(world, "GET", "/get_weight_version") == (200, {"weight_version": "3"})
        assert await call(world, "GET", "/health") == (200, {"ready": True})
        assert await call(world, "GET", "/liveness") == (200, {"status": "ok"})
        assert await call(world, "GET", "/health_generate") == (200, "")


async def test_fleet_without_weights_is_unhealthy_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(ROUTES, fleet=FakeFleet(published=None)) as world:
        assert await call(world, "GET", "/health") == (
            503,
            {"ready": False, "reason": "no engine serves any weights yet"},
        )

        async def away() -> None:
            raise FleetAway("rollout/manager: nobody there")

        async def silent() -> None:
            raise Failed("no token within 4 s")

        monkeypatch.setattr(world.fleet, "versions", away)
        monkeypatch.setattr(world.fleet, "probe", silent)
        status, answer = await call(world, "GET", "/health")
        assert (status, answer["reason"]) == (503, "rollout/manager: nobody there")  # type: ignore[index]
        status, answer = await call(world, "GET", "/health_generate")
        assert (status, answer["error"]["retryable"]) == (503, True)  # type: ignore[index]
        status, answer = await call(world, "GET", "/model_info")
        assert (status, answer["error"]["type"]) == (503, "EngineUnavailable")  # type: ignore[index]
        _, info = await call(world, "GET", "/server_info")
        assert (info["ready"], info["reason"]) == (False, "rollout/manager: nobody there")  # type: ignore[index]


def test_versions_and_modes_are_read_in_trainer_formats() -> None:
    assert [version_of(written, "v") for written in (None, "", 7, "7", "run/weight_v000007", "step_7/")] == [
        None, None, 7, 7, 7, 7,
    ]  # fmt: skip
    assert [version_of(written, "v") for written in ("run-2/step_7", "checkpoint-100", "9" * 18)] == [
        7, 100, 10**18 - 1,
    ]  # fmt: skip
    for written in (
        "latest",
        "-3",
        -3,
        "v1.2.10",
        "1.5",
        "epoch_1_step_2",
        "step_7_hf",
        "9" * 19,
        10**18,
        "٣",
    ):
        with pytest.raises(BadAsk, match="one number of at most 18 digits"):
            version_of(written, "v")
    assert [mode_of(written) for written in (None, "retract")] == ["abort", "keep"]
