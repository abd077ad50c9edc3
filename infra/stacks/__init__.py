"""One stack per thing that is deployed, changed and deleted on its own."""
