"""Engine URLs: an impossible URL is refused permanently, with the reason."""

import pytest

from gleaner.actors.gateway.control.routes import ROUTES
from gleaner.actors.gateway.engine_url import BadUrl, origin
from gleaner.actors.gateway.fleet import Worker
from tests.actors.gateway.gateway_world import FakeFleet, serving


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("10.0.0.5:30000", "http://10.0.0.5:30000"),
        ("http://gpu-7/v1?x=1#y", "http://gpu-7"),
        ("https://Engine_1.Cluster.Local.:443", "https://engine_1.cluster.local.:443"),
        ("http://[::1]:30000/", "http://[::1]:30000"),
    ],
)
def test_url_is_cut_to_its_origin(url: str, expected: str) -> None:
    assert origin(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://",
        "ftp://10.0.0.5",
        "http://[::1",
        "http://10.0.0.5:99999",
        "http://10.0.0.5:0",
        "http://10.0.0.5:http",
        "http://a b:1",
        "http://x\x00y",
        "http://\udcff",
        "http://10.0.0.300:1",
        "http://..:1",
        "http://" + "a" * 300,
        "http://user:secret@10.0.0.5:1",
    ],
)
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(BadUrl):
        origin(url)


class Strict(FakeFleet):
    """Reads URLs as a real fleet does."""

    async def add(self, url: str, api_key: str = "") -> Worker:
        return await super().add(origin(url), api_key)


async def test_refused_url_is_not_retryable() -> None:
    async with serving(ROUTES, fleet=Strict()) as world:
        for url in ("http://[::1", "http://10.0.0.5:99999", "ftp://x"):
            async with world.client.post(world.url + "/workers", json={"url": url}) as response:
                error = (await response.json())["error"]
            assert (response.status, error["retryable"], error["param"]) == (400, False, "url")
            assert "Retry-After" not in response.headers
