"""The checked-in API document is what the code says, and both are what the topology declares."""

from __future__ import annotations

from openapi_spec_validator import validate

from functions import openapi
from headrace.topology import ROUTES


def test_the_checked_in_document_is_up_to_date():
    assert openapi.DOCUMENT.read_text() == openapi.document_text(), "run `make openapi`"


def test_the_document_is_valid():
    validate(openapi.document())


def test_every_declared_route_is_served_and_no_other():
    served = {(method.upper(), path) for path, methods in openapi.document()["paths"].items() for method in methods}
    assert served == {(route.method, route.path) for route in ROUTES}


def test_route_is_served_by_the_function_of_the_topology():
    declared = {name.name: name for name in openapi.api_functions()}
    for route in ROUTES:
        served = openapi.operations_of(declared[route.function])
        assert (route.method, route.path.replace("{", "<").replace("}", ">")) in [
            (operation.method, operation.path) for operation in served
        ]


def test_operations_describe_only_the_error_shape_of_the_api():
    for operations in openapi.document()["paths"].values():
        for operation in operations.values():
            assert operation["responses"]["default"]["content"]["application/json"]["schema"] == {
                "$ref": "#/components/schemas/Error"
            }
            assert not {"422", "500"} & set(operation["responses"])
