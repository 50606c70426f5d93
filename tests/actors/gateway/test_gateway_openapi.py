"""OpenAPI document: generated from the gateway's routes and compared with its answers."""

import asyncio
import re
import threading
from collections.abc import Iterator

import httpx
import msgspec
import pytest
import schemathesis
from aiohttp import web
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gleaner.actors.gateway import openapi
from gleaner.actors.gateway.calls import Call, Route, json
from gleaner.actors.gateway.routes import ROUTES
from gleaner.actors.gateway.vllm.wire import Ok, Session
from tests.actors.gateway.gateway_world import serving
from tests.actors.gateway.story import Story

EXAMPLES = 2
"""Cases of each route, half of them valid; the same in every run."""

DOCUMENT = msgspec.json.decode(msgspec.json.encode(openapi.document(ROUTES)))
OPERATIONS = [found.ok() for found in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()]


async def lie(call: Call) -> web.StreamResponse:
    return json(Session(session_id="this is no Ok"))


LIAR = Route("GET", "/liar", lie, "Say one thing and do another.", answer=Ok, kind="open")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of a gateway in a thread, since the tester is not asynchronous."""
    loop = asyncio.new_event_loop()
    began: list[str] = []
    ready, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        story = Story(own_end=5)
        async with serving((*ROUTES, LIAR), requests=story) as world:
            began.append(world.url)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(60)
    yield began[0]
    loop.call_soon_threadsafe(over.set)
    thread.join(60)
    loop.close()


def reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def check(case: schemathesis.Case, url: str) -> None:
    """Send the case and compare the answer with the document."""
    checks = [
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
        status_code_conformance,
    ]
    response = case.call(base_url=url, timeout=60)
    if response.status_code != 501:  # unsupported routes answer so
        checks.append(not_a_server_error)
    case.validate_response(response, checks=checks)


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.label for operation in OPERATIONS])
def test_answers_match_the_document(operation: APIOperation, mode: GenerationMode, url: str) -> None:
    if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
        return  # nothing to get wrong

    @given(operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: schemathesis.Case) -> None:
        check(case, url)

    ask()


def test_undocumented_answer_is_found(url: str) -> None:
    liar = schemathesis.openapi.from_dict(msgspec.json.decode(msgspec.json.encode(openapi.document([LIAR]))))
    with pytest.raises(FailureGroup, match="status"):
        check(liar["/liar"]["GET"].Case(), url)


def test_document_has_every_route_and_resolves_every_reference() -> None:
    paths = DOCUMENT["paths"]
    for route in ROUTES:
        operation = paths[route.path.replace(":.+", "")][route.method.lower()]
        assert operation["summary"] == route.description
        assert ("requestBody" in operation) == (route.body is not None)
    names = [operation["operationId"] for path in paths.values() for operation in path.values()]
    assert len(set(names)) == len(names)
    for found in re.findall(
        r'"\$ref":"#/components/schemas/([^"]+)"', msgspec.json.encode(DOCUMENT).decode()
    ):
        assert found in DOCUMENT["components"]["schemas"]


def test_path_and_query_parameters_are_documented() -> None:
    def parameters(path: str, method: str) -> list[tuple[object, ...]]:
        declared = DOCUMENT["paths"][path][method]["parameters"]
        return [(one["name"], one["in"], one["required"]) for one in declared]

    assert parameters("/v1/models/{model}", "get") == [("model", "path", True)]
    assert parameters("/finish_session", "post") == [("session_id", "query", False)]


def test_state_changing_routes_name_the_control_key() -> None:
    paths = DOCUMENT["paths"]
    assert paths["/pause"]["post"]["security"] == [{"control": []}, {}]
    assert paths["/generate"]["post"]["security"] == [{"key": []}, {}]
    assert "security" not in paths["/liveness"]["get"]
    assert {"key", "control"} == set(DOCUMENT["components"]["securitySchemes"])


def test_other_statuses_and_lists_are_documented() -> None:
    paths = DOCUMENT["paths"]
    added = paths["/workers"]["post"]["responses"]
    assert "200" not in added
    assert added["202"]["content"]["application/json"]["schema"] == reference("WorkerTaken")
    load = paths["/get_load"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert load == {"type": "array", "items": reference("LoadIs")}
    sick = paths["/health"]["get"]["responses"]["503"]["content"]["application/json"]["schema"]
    assert sick == reference("Ready")


def test_fields_of_every_answer_are_required() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert set(schemas["TokenizeAnswer"]["required"]) == {"count", "max_model_len", "tokens", "token_strs"}
    assert "weight_version" not in schemas["Completion"]["required"], "there is none before the first token"
    assert schemas["CompletionRequest"]["required"] == ["prompt"]


def test_gateway_serves_its_document(url: str) -> None:
    answered = httpx.get(f"{url}/openapi.json").json()
    assert answered["openapi"] == "3.1.0"
    assert set(answered["paths"]) == set(DOCUMENT["paths"])
