"""The Lambda functions: thin shells that turn HTTP requests, queue messages and schedules into calls of services."""
