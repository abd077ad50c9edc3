"""The log whose entries are objects in S3."""
