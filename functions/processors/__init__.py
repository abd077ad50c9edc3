"""What works on queues and schedules: unpack the message, call one workflow, say what has to come again."""
