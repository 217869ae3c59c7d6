"""/openapi.json tells the truth: random requests made from it are answered as it says."""

import asyncio
import re
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.server.conftest import Server

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
NUM_EXAMPLES = 15


def try_operation(operation: APIOperation) -> None:
    @given(case=operation.as_strategy())
    @settings(
        max_examples=NUM_EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Case) -> None:
        case.call_and_validate(checks=CHECKS)

    check()


async def test_random_requests_are_answered_as_it_says(server: Server) -> None:
    schema = await asyncio.to_thread(schemathesis.openapi.from_url, f"{server.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 10
    for operation in operations:
        await asyncio.to_thread(try_operation, operation)


async def test_it_holds_every_path(server: Server) -> None:
    _, api = await server.get("/openapi.json")
    served = {
        re.sub(r":[^}]*", "", route.resource.canonical)
        for route in server.app.router.routes()
        if route.resource is not None
    }
    assert set(api["paths"]) == served - {"/openapi.json", "/docs", "/v1/embeddings"}


@pytest.mark.parametrize(
    ("prompt", "is_valid"),
    [("a", True), (["a"], True), ([1], True), ([[1], [2]], True), (5, False), ({}, False)],
)
async def test_it_tells_what_a_prompt_may_be(server: Server, prompt: Any, is_valid: bool) -> None:
    _, api = await server.get("/openapi.json")
    schema = api["components"]["schemas"]["CompletionBody"]["properties"]["prompt"]
    assert Draft202012Validator(schema).is_valid(prompt) == is_valid
    status, _ = await server.post("/v1/completions", {"prompt": prompt})
    assert status == (200 if is_valid else 400)


async def test_the_page_needs_nothing_from_elsewhere(server: Server) -> None:
    async with server.http.get(server.url + "/docs") as response:
        assert response.content_type == "text/html"
        page = await response.text()
    assert "openapi.json" in page
    assert "http" not in page
