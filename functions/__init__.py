"""The Lambda functions: thin shells that turn HTTP requests, queue messages and schedules into calls of services."""

from __future__ import annotations

import gc
import os

GARBAGE_THRESHOLD = 200_000
"""New objects between two collections. A cold start makes a few hundred thousand objects, nearly none of them garbage.
With Python's default of 2,000, garbage collection took a tenth of its time, and with 50,000 a fiftieth."""

if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
    gc.set_threshold(GARBAGE_THRESHOLD)
