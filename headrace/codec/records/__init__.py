"""The persisted shapes of stream metadata, one module each: key, body, and back. Bodies are plain JSON values.

A body carries the number of its format, so that a shape can change while old records still exist. A body that
cannot be decoded raises CorruptError, because only this library writes records.
"""
