"""Background work in SQS FIFO queues."""
