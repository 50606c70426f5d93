"""OpenAPI document of the gateway, generated from the routes and their structs.

Owns the conversion of a route to an operation. The structs that a route reads are its description: there is
no second text to keep. Adapter: one route answers with it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args, get_type_hints

import msgspec
from aiohttp import web
from msgspec import UnsetType

from gleaner.actors.gateway.calls import Call, Operation, Route
from gleaner.actors.gateway.problems import ProblemBody

VERSION = "3.1.0"
REFERENCE = "#/components/schemas/{name}"
PATH = "/openapi.json"

Json = dict[str, object]

ERRORS = {
    "400": "The request is wrong; `error.param` names the field.",
    "401": "An API key is wanted.",
    "403": "The key opens no route that changes state; or, without keys, `Host` or `Origin` is a stranger's.",
    "404": "No such thing here.",
    "409": "The version that was asked for is not served, or this fleet is not changed from here.",
    "413": "The body is too long.",
    "503": "No engine can answer now; ask again after `Retry-After` seconds.",
    "default": "Any other error, in the same form.",
}

EVENT: Json = {
    "type": "object",
    "description": "A server-sent event: `data` is a chunk of the answer, an error, or at the end `[DONE]`.",
    "properties": {"data": {"type": "string"}},
    "required": ["data"],
}

_PARAMETER = re.compile(r"{(\w+)(:[^}]*)?}")


def document(
    routes: Sequence[Operation], title: str = "Gleaner gateway", errors: Mapping[str, str] = ERRORS
) -> Json:
    """OpenAPI of these routes; all of it is JSON. errors: meanings of the statuses of errors."""
    types: list[type[msgspec.Struct]] = [ProblemBody]
    for route in routes:
        types += [one for one in (route.body, route.query, route.answer, route.down) if one is not None]
    known = list(dict.fromkeys(types))
    references, schemas = msgspec.json.schema_components(known, ref_template=REFERENCE)
    of: dict[type[msgspec.Struct], Json] = dict(zip(known, references, strict=True))
    read = _structs(one for route in routes for one in (route.body, route.query) if one is not None)
    for kind in _structs(route.answer for route in routes if route.answer is not None):
        if kind not in read and kind.__name__ in schemas:
            schemas[kind.__name__]["required"] = _always_present(kind)
    paths: dict[str, Json] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, of, schemas, errors)
    for one in (route.query for route in routes if route.query is not None):
        schemas.pop(_name(of[one]), None)  # described as parameters instead
    return {
        "openapi": VERSION,
        "info": {"title": title, "version": "1"},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "control": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Of routes that change state, where the gateway has control keys.",
                },
            },
        },
    }


def with_document(routes: Sequence[Route]) -> tuple[Route, ...]:
    """The routes, and one that answers with the document of all of them."""

    async def answer(call: Call) -> web.StreamResponse:
        return web.Response(body=text, content_type="application/json")

    all_ = (*routes, Route("GET", PATH, answer, "This document.", kind="open"))
    text = msgspec.json.encode(document(all_))
    return all_


def _structs(roots: Iterable[type[msgspec.Struct]]) -> set[type[msgspec.Struct]]:
    """These structs and all structs in their fields."""
    found: set[type[msgspec.Struct]] = set()
    todo: list[object] = list(roots)
    while todo:
        one = todo.pop()
        todo += get_args(one)
        if isinstance(one, type) and issubclass(one, msgspec.Struct) and one not in found:
            found.add(one)
            todo += get_type_hints(one).values()
    return found


def _always_present(kind: type[msgspec.Struct]) -> list[str]:
    """Fields that are in every answer: those with a default are sent as well, unless it is UNSET."""
    hints = get_type_hints(kind)
    return [
        field.encode_name
        for field in msgspec.structs.fields(kind)
        if field.required
        or (not kind.__struct_config__.omit_defaults and UnsetType not in get_args(hints[field.name]))
    ]


def _operation(
    route: Operation,
    of: dict[type[msgspec.Struct], Json],
    schemas: dict[str, Any],
    meanings: Mapping[str, str],
) -> Json:
    parameters: list[Json] = [
        {"name": match[1], "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for match in _PARAMETER.finditer(route.path)
    ]
    if route.query is not None:
        schema = schemas[_name(of[route.query])]
        required = schema.get("required", [])
        for name, property_ in schema.get("properties", {}).items():
            one = {"name": name, "in": "query", "required": name in required, "schema": property_}
            parameters.append(one)
    operation: Json = {
        "operationId": _id(route),
        "summary": route.description,
        "responses": {str(route.status): _answer(route, of), **_errors(route, of, meanings)},
    }
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        required_fields = schemas[_name(of[route.body])].get("required", [])
        operation["requestBody"] = {"required": bool(required_fields), "content": _json(of[route.body])}
    if route.kind != "open":
        operation["security"] = [{"control" if route.kind == "change" else "key": []}, {}]
    return operation


def _answer(route: Operation, of: dict[type[msgspec.Struct], Json]) -> Json:
    answer: Json = {"description": "Done."}
    if route.answer is not None:
        one = of[route.answer]
        content = _json({"type": "array", "items": one} if route.many else one)
        if route.body is not None and "stream" in get_type_hints(route.body):
            content["text/event-stream"] = {"schema": EVENT}
        answer["content"] = content
    return answer


def _errors(route: Operation, of: dict[type[msgspec.Struct], Json], meanings: Mapping[str, str]) -> Json:
    errors: Json = {
        status: {"description": text, "content": _json(of[ProblemBody])}
        for status, text in meanings.items()
        if (status not in ("401", "403") or route.kind != "open")
        and (status != "413" or route.body is not None)
    }
    if route.down is not None:
        errors["503"] = {"description": "Not now; the body has the reason.", "content": _json(of[route.down])}
    return errors


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _name(reference: Json) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _id(route: Operation) -> str:
    """One word for the operation, from method and path."""
    words = re.findall(r"\w+", _PARAMETER.sub(r"\1", route.path))
    return "_".join([route.method.lower(), *words, *(["all"] if route.path.endswith("/") else [])])
