"""The OpenAPI document of the HTTP API, generated from the handlers of all functions.

`python -m functions.openapi` writes `docs/api/openapi.json`. A test fails if the file differs from the generated text.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any, get_args

from headrace import __version__, topology
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
_DROPPED_SCHEMAS = {"HTTPValidationError", "ResponseValidationError", "ValidationError"}
_DROPPED_STATUSES = ("422", "500")
"""The schemas and statuses of Powertools' own error shapes, which the functions never return."""


def api_functions() -> list[topology.Function]:
    """The functions that serve routes, in the order of the topology."""
    serving = {route.function for route in topology.ROUTES}
    return [declared for declared in topology.FUNCTIONS if declared.name in serving]


def document() -> dict[str, Any]:
    """The document of all functions together.

    Raises:
        ValueError: two functions define the same route, or different schemas of the same name.
    """
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {"Error": _ERROR}
    for declared in api_functions():
        module = importlib.import_module(declared.handler.rpartition(".")[0])
        part = json.loads(module.api.get_openapi_json_schema(title="Headrace", version=__version__))
        for path, operations in part["paths"].items():
            _merge(paths.setdefault(path.replace("<", "{").replace(">", "}"), {}), operations, path)
        _merge(schemas, part.get("components", {}).get("schemas", {}), declared.name)
    for operations in paths.values():
        for operation in operations.values():
            for status in _DROPPED_STATUSES:
                operation["responses"].pop(status, None)
            operation["responses"].get("204", {}).pop("content", None)
            operation["responses"]["default"] = _ERROR_RESPONSE
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
            "schemas": {name: schemas[name] for name in sorted(schemas) if name not in _DROPPED_SCHEMAS},
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


def _merge(into: dict[str, Any], part: dict[str, Any], where: str) -> None:
    for name, value in part.items():
        if into.setdefault(name, value) != value:
            raise ValueError(f"{name} of {where} has two different definitions")


def main() -> int:
    """Write the file."""
    DOCUMENT.parent.mkdir(parents=True, exist_ok=True)
    DOCUMENT.write_text(document_text())
    print(f"wrote {DOCUMENT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
