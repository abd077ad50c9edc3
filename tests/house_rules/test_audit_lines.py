"""No change goes without an audit line: every route that may change something says what, and its function tells it.

tests/functions/test_audit.py and tests/bridge/test_audit.py look at the lines of each end of a request.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from syntax_trees import syntax_tree

from headrace.topology import ROUTES, function

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = sorted({route.function for route in ROUTES})
QUESTIONS = ("segments/between", "stream-cuts/check", "stream-cuts/distance", "next-cut")
"""The ends of the paths that ask by POST, because the question has a body."""


def handler_is_audited(text: str) -> bool:
    """Whether a module gives Lambda the handler of the HTTP layer, which writes the lines, and no other."""
    assigned = [
        ast.unparse(node.value)
        for node in ast.walk(syntax_tree(text))
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["handler"]
    ]
    functions = [node.name for node in ast.walk(syntax_tree(text)) if isinstance(node, ast.FunctionDef)]
    return assigned == ["lambda_handler(api)"] and "handler" not in functions


def test_a_route_that_is_no_question_has_an_action():
    silent = [route for route in ROUTES if not route.action and route.method != "GET"]
    assert sorted(route.path.split("{stream}/")[-1] for route in silent) == sorted(QUESTIONS)


def test_an_action_is_a_kind_and_a_verb():
    for route in ROUTES:
        kind, dot, verb = route.action.partition(".")
        assert not route.action or (kind and dot and verb), route.key


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_answers_through_the_audited_handler(name: str):
    module, _, attribute = function(name).handler.rpartition(".")
    assert attribute == "handler"
    assert handler_is_audited((ROOT / f"{module.replace('.', '/')}.py").read_text())


@pytest.mark.parametrize(
    "text", ["handler = api.resolve", "def handler(event, context): ...", "handler = wrapped(lambda_handler(api))"]
)
def test_another_handler_is_found(text: str):
    assert not handler_is_audited(text)
    assert handler_is_audited("handler = lambda_handler(api)")
