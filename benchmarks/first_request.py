"""The first request of a function in a new process, as Lambda sees it: `python first_request.py MODULE PATH`.

DynamoDB is not asked: it answers that there is nothing. Prints the status and the imported modules as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from types import SimpleNamespace
from typing import Any


def main(module: str, path: str) -> int:
    handle = importlib.import_module(module).handler
    from botocore.awsrequest import AWSResponse
    from botocore.httpsession import URLLib3Session

    nothing_found = SimpleNamespace(stream=lambda: [b'{"Items": [], "Count": 0}'])

    def send(_session: Any, request: Any) -> Any:
        answered: Any = AWSResponse
        return answered(request.url, 200, {}, nothing_found)

    URLLib3Session.send = send  # type: ignore[assignment, method-assign]
    http = {"method": "GET", "path": path, "sourceIp": "192.0.2.1", "protocol": "HTTP/1.1", "userAgent": "test"}
    event: dict[str, Any] = {"version": "2.0", "rawPath": path, "rawQueryString": "", "headers": {}}
    event |= {"isBase64Encoded": False, "requestContext": {"http": http, "stage": "$default"}}
    context = SimpleNamespace(function_name="f", memory_limit_in_mb=512, invoked_function_arn="arn", aws_request_id="r")
    context.get_remaining_time_in_millis = lambda: 29_000
    print(json.dumps({"status": handle(event, context)["statusCode"], "modules": sorted(sys.modules)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
