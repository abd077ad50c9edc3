"""`headrace access policy`: the policy that it prints is IAM's, for the names and the deployment that were given."""

from __future__ import annotations

import pytest
from command_line import Run
from iam_policies import allows

from headrace.topology import ROUTES

REGION = ("--region", "eu-west-1", "--account", "111122223333", "--api-id", "a1b2c3")
ARN = "arn:aws:execute-api:eu-west-1:111122223333:a1b2c3/$default"
TOKEN = "/delegation-token"
URL = "https://x9.execute-api.us-east-1.amazonaws.com"
STREAM = f"{ARN}/{{}}/v1/scopes/shop/streams/orders"


@pytest.mark.parametrize(
    ("access", "allowed", "refused"),
    [
        ("--read", ["GET {}", "GET {}/delegation-token", "POST {}/next-cut"], ["POST {}/delegation-token", "PUT {}"]),
        (
            "--consume",
            ["GET {}", "PUT {}/subscribers/g/position"],
            ["POST {}/delegation-token", "POST {}/transactions"],
        ),
        (
            "--write",
            ["GET {}", "POST {}/delegation-token", "POST {}/transactions"],
            ["PUT {}/delegation-token", "PUT {}"],
        ),
        ("--manage", ["GET {}", "PUT {}", "DELETE {}", "POST {}/truncate", "PUT {}/delegation-token"], []),
    ],
)
def test_a9_a_policy_allows_the_calls_of_its_use(run: Run, access: str, allowed: list[str], refused: list[str]):
    ran = run("access", "policy", "--scope", "shop", "--stream", "orders", access, *REGION)
    assert ran.code == 0
    for calls, expected in ((allowed, True), (refused, False)):
        for call in calls:
            method, _, path = call.partition(" ")
            for name, is_expected in (("orders", expected), ("orders2", False), ("order", False)):
                called = f"{ARN}/{method}{path.format(f'/v1/scopes/shop/streams/{name}')}"
                assert allows([ran.document], called) == is_expected, called
    assert not allows([ran.document], f"{ARN}/GET/v1/scopes/shop-eu/streams/orders")
    assert not allows([ran.document], STREAM.format("GET").replace("a1b2c3", "other"))
    assert not allows([ran.document], STREAM.format("GET").replace("eu-west-1", "us-east-1"))


def test_uses_may_be_combined(run: Run):
    ran = run(
        "access", "policy", "--scope", "shop", "--stream", "orders", "--group", "b", "--consume", "--write", *REGION
    )
    assert allows([ran.document], f"{STREAM.format('POST')}/delegation-token")
    assert allows([ran.document], f"{STREAM.format('PUT')}/subscribers/b")
    assert allows([ran.document], f"{ARN}/POST/v1/scopes/shop/reader-groups/b/delegation-token")
    assert not allows([ran.document], f"{ARN}/POST/v1/scopes/shop/reader-groups/c/delegation-token")


def test_a_scope_alone_has_all_that_is_in_it(run: Run):
    ran = run("access", "policy", "--scope", "shop", "--manage", *REGION)
    for route in ROUTES:
        path = route.path.replace("{scope}", "shop").replace("{", "").replace("}", "")
        assert allows([ran.document], f"{ARN}/{route.method}{path}") == (
            "{scope}" in route.path or route.path == "/v1/trust"
        ), route.key
    assert "scope.create is not allowed: POST/v1/scopes has the name in its body" in ran.err


@pytest.mark.parametrize(
    ("options", "arn"),
    [
        ((), "arn:aws:execute-api:REGION:ACCOUNT:API_ID/$default"),
        (
            ("--url", URL),
            "arn:aws:execute-api:us-east-1:ACCOUNT:x9/$default",
        ),
        (
            ("--url", URL, "--api-id", "y8", "--region", "us-gov-west-1"),
            "arn:aws-us-gov:execute-api:us-gov-west-1:ACCOUNT:y8/$default",
        ),
        (("--region", "cn-north-1", "--stage", "v1"), "arn:aws-cn:execute-api:cn-north-1:ACCOUNT:API_ID/v1"),
        (("--region", "eu-isoe-west-1"), "arn:aws-iso-e:execute-api:eu-isoe-west-1:ACCOUNT:API_ID/$default"),
        (("--region", "us-iso-east-1"), "arn:aws-iso:execute-api:us-iso-east-1:ACCOUNT:API_ID/$default"),
        (("--region", "us-isob-east-1"), "arn:aws-iso-b:execute-api:us-isob-east-1:ACCOUNT:API_ID/$default"),
        (
            ("--url", "https://x9.execute-api.eusc-de-east-1.amazonaws.eu"),
            "arn:aws-eusc:execute-api:eusc-de-east-1:ACCOUNT:x9/$default",
        ),
        (
            ("--url", f"{URL}.evil.org"),
            "arn:aws:execute-api:REGION:ACCOUNT:API_ID/$default",
        ),
    ],
)
def test_the_arn_is_that_of_the_deployment(run: Run, options: tuple[str, ...], arn: str):
    ran = run("access", "policy", "--scope", "shop", "--stream", "orders", "--read", *options)
    assert (ran.code, ran.err) == (0, "")
    (statement,) = ran.document["Statement"]
    assert statement["Resource"][0] == f"{arn}/GET/v1/scopes/shop/streams/orders"
    assert all(resource.startswith(f"{arn}/") for resource in statement["Resource"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--scope", "shop"), "expected at least one of"),
        (("--scope", "shop*", "--read"), "cannot exist"),
        (("--scope", "sh?p", "--read"), "cannot exist"),
        (("--scope", "shop", "--stream", "a/b", "--read"), "cannot exist"),
        (("--scope", "shop", "--stream", "..", "--read"), "not allowed"),
        (("--scope", "shop", "--read", "--account", "*"), "cannot be part of an ARN"),
        (("--scope", "shop", "--read", "--stage", "${x}"), "not the name of a stage"),
        (("--stream", "orders", "--read"), "--scope"),
    ],
)
def test_what_would_allow_more_is_refused(run: Run, arguments: tuple[str, ...], message: str):
    ran = run("access", "policy", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_a_member_of_a_group_is_told_of_the_group(run: Run):
    ran = run("access", "policy", "--scope", "shop", "--stream", "orders", "--consume")
    assert "a member of a group also needs the routes of --group NAME" in ran.err
