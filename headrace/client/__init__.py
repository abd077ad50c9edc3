"""The Python client: admin, event writer, event reader. Async at the core, with a synchronous face."""
