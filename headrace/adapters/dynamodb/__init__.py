"""The metadata store in one DynamoDB table."""
