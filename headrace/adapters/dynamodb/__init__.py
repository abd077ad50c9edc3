"""Metadata in one DynamoDB table."""
