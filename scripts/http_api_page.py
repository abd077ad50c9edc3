"""The page of the HTTP API, from its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_REFERENCE = "#/components/schemas/"
_JSON = "application/json"
_HEAD = """# HTTP API

Every call of the controller, generated from the [OpenAPI document](../api/openapi.json). Requests and replies are JSON.
On AWS, requests are signed (SigV4) for the service `execute-api`. Events are not written or read through this API.

A caller may give its call an id with the header `x-headrace-correlation-id` (1 to 64 of `A-Za-z0-9._-`). The
[audit lines](../operating/security.md#audit-lines) and the log lines of the steps repeat it. A path has one form: see
[canonical paths](../operating/security.md#canonical-paths).

An error has the body [`Error`](#schema-error). Its `code` is stable.
"""


def http_api_page(api: Mapping[str, Any]) -> str:
    """Returns the Markdown of the page: the calls by tag, then the schemas."""
    calls: dict[str, list[str]] = {}
    for path, methods in api["paths"].items():
        for method, call in methods.items():
            calls.setdefault(call["tags"][0], []).append("".join(_call(method, path, call)))
    parts = [_HEAD]
    for tag, described in calls.items():
        parts += [f"\n## {tag}\n", *described]
    parts.append("\n## Schemas\n")
    for name, schema in sorted(api["components"]["schemas"].items()):
        parts += _schema(name, schema)
    return "".join(parts)


def _call(method: str, path: str, call: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n### {call['summary']}\n\n`{method.upper()} {path}`\n"
    if call.get("description"):
        yield f"\n{call['description']}\n"
    parameters = [each for each in call.get("parameters", ()) if each["in"] != "path"]
    if parameters:
        yield "\n| parameter | in | type | meaning |\n|---|---|---|---|\n"
        for parameter in parameters:
            meaning = parameter.get("description") or parameter["schema"].get("description", "")
            yield f"| `{parameter['name']}` | {parameter['in']} | {_type(parameter['schema'])} | {_cell(meaning)} |\n"
    if "requestBody" in call:
        yield f"\nBody: {_content(call['requestBody'])}\n"
    answers = [
        f"{status} {_content(response)}".strip()
        for status, response in call["responses"].items()
        if status != "default"
    ]
    yield f"\nAnswer: {', '.join(answers)}\n"


def _content(body: Mapping[str, Any]) -> str:
    schema = body.get("content", {}).get(_JSON, {}).get("schema")
    return _type(schema) if schema else ""


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n### {name} {{: #{_anchor(name)} }}\n"
    if schema.get("description"):
        yield f"\n{_cell(schema['description'])}\n"
    if "properties" not in schema:
        yield f"\n{_type(schema)}\n"
        return
    yield "\n| field | type | meaning |\n|---|---|---|\n"
    required = schema.get("required", ())
    for field, kind in schema["properties"].items():
        optional = "" if field in required else ", optional"
        yield f"| `{field}` | {_type(kind)}{optional} | {_cell(kind.get('description', ''))} |\n"


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REFERENCE)
        return f"[{name}](#{_anchor(name)})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_type(each) for each in schema[several])
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return str(schema.get("type", "any value"))


def _anchor(name: str) -> str:
    return f"schema-{name.lower()}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
