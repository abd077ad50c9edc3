"""Implementations of the ports, one package per technology: memory, disk, tcp, dynamodb, sqs, s3.

No adapter imports another one.
"""
