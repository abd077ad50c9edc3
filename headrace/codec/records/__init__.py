"""The persisted shapes of stream metadata, one module each: key, body, and back. Bodies are plain JSON values.

A body carries the number of its format, so that a shape can change while old records are still about. Whatever does not
decode raises CorruptError: records are written by us alone.
"""
