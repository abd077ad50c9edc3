"""The functions on queues and schedules: each unpacks a message, calls a service and reports failures."""
