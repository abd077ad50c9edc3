"""What readers see: the cache of appended bytes, the index over it, and reads that wait at the tail."""
