"""The whole system on one machine: moto for AWS, the Lambda handlers behind a local gateway, real segment stores.

Everything binds to loopback. What exists is declared in `headrace.topology`; nothing is declared again here.
"""
