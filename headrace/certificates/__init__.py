"""Issues the certificates of a deployment: the profile, the rules when one is due, and the run that stores them.

Only this package, and the adapter for signing keys in KMS, import `cryptography`. Processes that use a certificate
load it with OpenSSL, as PEM.
"""
