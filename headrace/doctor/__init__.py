"""Examines a deployment: what is wrong, how it shows, and what to do. `headrace doctor` runs it.

The checks are pure: each is a function from what was read to a finding. Reading is in modules of its own, which send
requests that change nothing. Only the check of the data path writes, into a stream of its own, and only if it is asked.
"""
