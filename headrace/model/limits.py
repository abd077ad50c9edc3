"""Limits that users can see, each with its unit in its name. Sources: Pravega's published defaults unless said."""

EVENT_BYTES_MAX = 8 * 1024 * 1024
"""Payload of one event (Pravega: 8 MiB)."""

EVENT_HEADER_BYTES = 8

WIRE_FRAME_PAYLOAD_BYTES_MAX = 16_777_207
"""Largest frame payload that satisfies the Java and the Rust client alike (16 MiB - 1, less the 8-byte header)."""

READ_BYTES_MAX = 2 * 1024 * 1024
"""Most bytes that one ReadSegment answers."""

SCOPE_NAME_CHARACTERS_MAX = 255
STREAM_NAME_CHARACTERS_MAX = 250
SEGMENT_NAME_BYTES_MAX = 65_535

TAGS_PER_STREAM_MAX = 128
TAG_CHARACTERS_MAX = 256

SEGMENTS_PER_STREAM_MAX = 1_000
"""Active segments of one stream (ours: keeps an epoch record far below DynamoDB's 400 KB)."""

PAGE_ITEMS_DEFAULT = 100
PAGE_ITEMS_MAX = 1_000
