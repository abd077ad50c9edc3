"""One technology each behind a port: memory, disk, tcp, dynamodb, sqs, s3. They do not know each other."""
