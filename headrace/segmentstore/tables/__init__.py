"""Table segments: entries that are appended to a segment, and the index that finds the newest one of each key."""
