"""HEAD, OPTIONS, `/readiness` and `/metrics`: requests of probes and monitors."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gleaner.actors.gateway.access import Access
from gleaner.actors.gateway.routes import ROUTES
from tests.actors.gateway.gateway_world import FakeFleet, World, serving
from tests.actors.gateway.story import Story

PATHS = sorted({route.path.replace("{model}", "m").replace("{response}", "r") for route in ROUTES})


@pytest.mark.parametrize("path", [path for path in PATHS if "{" not in path])
async def test_paths_list_their_methods_and_answer_head_as_get(path: str) -> None:
    async with serving(ROUTES, requests=Story(own_end=1)) as world:
        async with world.client.options(world.url + path) as options:
            assert options.status == 204
            methods = options.headers["Allow"].split(", ")
            assert "OPTIONS" in methods
        async with world.client.head(world.url + path) as head:
            assert await head.read() == b""
        if "GET" not in methods:
            assert head.status == 405
            assert head.headers["Allow"] == options.headers["Allow"]
            return
        async with world.client.get(world.url + path) as get:
            assert head.status == get.status
            assert head.headers.get("Content-Type") == get.headers.get("Content-Type")


async def test_unknown_path_is_not_found_by_any_method() -> None:
    async with serving(ROUTES) as world:
        for method in ("GET", "HEAD", "OPTIONS"):
            async with world.client.request(method, world.url + "/nowhere") as answer:
                assert answer.status == 404


async def test_readiness_reflects_a_serving_engine() -> None:
    fleet = FakeFleet(published=None)
    async with serving(ROUTES, fleet=fleet, access=Access(keys=["secret"])) as world:
        for ready, status in ((None, 503), (4, 200)):
            fleet.published = ready
            for path in ("/readiness", "/health"):
                async with world.client.get(world.url + path) as answer:
                    assert answer.status == status


async def figures(world: World) -> dict[str, float]:
    async with world.client.get(world.url + "/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        families = text_string_to_metric_families(await answer.text())
        return {
            ",".join((sample.name, *sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
        }


async def test_metrics_count_calls_and_report_served_weights() -> None:
    async with serving(ROUTES, requests=Story(own_end=2)) as world:
        for body in ({"prompt": "a"}, {"prompt": "a"}, {"prompt": 1}):
            async with world.client.post(world.url + "/v1/completions", json=body):
                pass
        async with world.client.get(world.url + "/no/such/path"):
            pass
        scraped = await figures(world)
    assert scraped["gleaner_gateway_calls_total,POST,/v1/completions,200"] == 2
    assert scraped["gleaner_gateway_calls_total,POST,/v1/completions,400"] == 1
    assert scraped["gleaner_gateway_calls_total,,other,404"] == 1
    assert scraped["gleaner_gateway_call_seconds_count,/v1/completions"] == 3
    assert scraped["gleaner_gateway_open_calls"] == 1, "this one"
    assert scraped["gleaner_gateway_weight_version"] == 3
