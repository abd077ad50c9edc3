"""The whole system on one machine: moto for AWS, the Lambda handlers behind a local gateway, real segment stores.

Everything binds to loopback. The stack creates the resources that `headrace.topology` declares, and no others.
"""
