"""The OpenAPI document of the HTTP API, generated from the handlers of all functions.

`python -m functions.openapi` writes `docs/api/openapi.json`. A test fails if the file differs from the generated text.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from functions.operations import Operation, Parameter, PathParameter
from headrace import __version__, topology
from headrace.model.documents import Document
from headrace.model.errors import Retry

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "api" / "openapi.json"

_ERROR: dict[str, Any] = {
    "type": "object",
    "title": "Error",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "retry", "details"],
            "properties": {
                "code": {"type": "string", "description": "Stable, for programs"},
                "message": {"type": "string", "description": "For people: what was wrong and what to do"},
                "retry": {"type": "string", "enum": list(get_args(Retry))},
                "details": {"type": "object", "additionalProperties": True},
            },
        }
    },
}
_ERROR_RESPONSE = {
    "description": "Anything else: the status tells the class of the error, the code what it is exactly",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_REFERENCE = "#/components/schemas/"
_JSON = "application/json"


def api_functions() -> list[topology.Function]:
    """The functions that serve routes, in the order of the topology."""
    serving = {route.function for route in topology.ROUTES}
    return [declared for declared in topology.FUNCTIONS if declared.name in serving]


def operations_of(declared: topology.Function) -> list[Operation]:
    """The operations of a function, in the order of its module."""
    operations: list[Operation] = importlib.import_module(declared.handler.rpartition(".")[0]).api.operations
    return operations


def document() -> dict[str, Any]:
    """The document of all functions together.

    Raises:
        ValueError: two classes have one name in the document.
    """
    operations = [operation for declared in api_functions() for operation in operations_of(declared)]
    read = {
        parameter.type for operation in operations for parameter in operation.parameters if parameter.declared is None
    }
    answered = {kind for operation in operations for kinds in operation.answers.values() for kind in kinds}
    schemas = _schemas(read | answered)
    in_requests = _reached(schemas, {_name(kind) for kind in read})
    for name, schema in schemas.items():
        if "properties" not in schema:
            continue
        if name in in_requests:
            schema["additionalProperties"] = False
        else:  # an answer has all its fields, and a later release may add some
            schema["required"] = list(schema["properties"])
            for each in schema["properties"].values():
                each.pop("default", None)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = operation.path.replace("<", "{").replace(">", "}")
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation)
    schemas["Error"] = _ERROR
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": __version__,
            "description": "Control plane: scopes, streams, segments and links to history. Events travel over the "
            "wire protocol, not through this API.",
        },
        "security": [{"iam": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {
                "iam": {
                    "type": "apiKey",
                    "name": "Authorization",
                    "in": "header",
                    "description": "AWS Signature Version 4; the local stack asks for none",
                    "x-amazon-apigateway-authtype": "awsSigv4",
                }
            },
        },
    }


def document_text() -> str:
    """The text of the file."""
    return json.dumps(document(), indent=2, ensure_ascii=True) + "\n"


def _schemas(kinds: Collection[type[Document]]) -> dict[str, Any]:
    """The schemas of the documents, and of what they consist of, by their names in the API document.

    Docstrings are for users of Python. They name fields as Python does, so they are left out.
    """
    _, components = msgspec.json.schema_components(sorted(kinds, key=_name), ref_template=_REFERENCE + "{name}")
    text = json.dumps(components)
    for name in components:
        text = text.replace(f'"{_REFERENCE}{name}"', f'"{_REFERENCE}{_shown(name)}"')
    schemas: dict[str, Any] = {_shown(name): schema for name, schema in json.loads(text).items()}
    if len(schemas) < len(components):
        raise ValueError(f"two classes have one name in the API document: {sorted(components)}")
    for name, schema in schemas.items():
        schema["title"] = name
        schema.pop("description", None)
    return schemas


def _shown(name: str) -> str:
    """The name of a class in the API document."""
    return name.removesuffix("View")


def _name(kind: type[Document]) -> str:
    return _shown(kind.__name__)


def _reached(schemas: Mapping[str, Any], names: set[str]) -> set[str]:
    """The names and those of all schemas that theirs refer to."""
    reached: set[str] = set()
    while names - reached:
        text = json.dumps([schemas[name] for name in names - reached])
        reached |= names
        names = set(re.findall(f'"{_REFERENCE}(\\w+)"', text))
    return reached


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "tags": list(operation.tags),
        "summary": operation.summary,
        "operationId": re.sub(r"\W", "_", f"{operation.handler.__name__}{operation.path}_{operation.method.lower()}"),
        "parameters": [_parameter(parameter) for parameter in operation.parameters if parameter.declared is not None],
    }
    bodies = [parameter.type for parameter in operation.parameters if parameter.declared is None]
    if bodies:
        described["requestBody"] = {"required": True, "content": _content((bodies[0],))}
    described["responses"] = {
        str(status): _response(operation, status, kinds) for status, kinds in sorted(operation.answers.items())
    }
    described["responses"]["default"] = _ERROR_RESPONSE
    return described


def _parameter(parameter: Parameter) -> dict[str, Any]:
    declared = parameter.declared
    assert declared is not None
    schema = msgspec.json.schema(parameter.type)
    in_path = isinstance(declared, PathParameter)
    if not in_path and parameter.default not in (None, inspect.Parameter.empty):
        schema["default"] = parameter.default
    return {
        "name": parameter.shown_name,
        "in": "path" if in_path else "query",
        "description": declared.description,
        "required": parameter.default is inspect.Parameter.empty,
        "schema": schema,
    }


def _response(operation: Operation, status: int, kinds: Sequence[type[Document]]) -> dict[str, Any]:
    description = operation.descriptions.get(status, "Successful Response")
    return {"description": description, "content": _content(kinds)} if kinds else {"description": description}


def _content(kinds: Sequence[type[Document]]) -> dict[str, Any]:
    references = [{"$ref": _REFERENCE + _name(kind)} for kind in kinds]
    return {_JSON: {"schema": references[0] if len(references) == 1 else {"anyOf": references}}}


def main() -> int:
    """Write the file."""
    DOCUMENT.parent.mkdir(parents=True, exist_ok=True)
    DOCUMENT.write_text(document_text())
    print(f"wrote {DOCUMENT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
