"""Limits that users can see, each with its unit in its name. Sources: Pravega's published defaults unless said."""

EVENT_BYTES_MAX = 8 * 1024 * 1024
"""Payload of one event that is appended as it is (Pravega: 8 MiB)."""

EVENT_BYTES_MAX_LARGE = 128 * 1024 * 1024
"""Payload of one event that is appended in pieces and merged (ours: writers and readers hold such events in memory)."""

EVENT_HEADER_BYTES = 8

WIRE_FRAME_PAYLOAD_BYTES_MAX = 16_777_207
"""Largest frame payload that satisfies the Java and the Rust client alike (16 MiB - 1, less the 8-byte header)."""

READ_BYTES_MAX = 2 * 1024 * 1024
"""Most bytes in the answer to one ReadSegment."""

SCOPE_NAME_CHARACTERS_MAX = 255
STREAM_NAME_CHARACTERS_MAX = 250
WRITER_NAME_CHARACTERS_MAX = 250
SEGMENT_NAME_BYTES_MAX = 4_096
"""The name of a segment in a command (ours: Pravega's frames have room for 65,535). A segment store creates segments
with names of half of it. Segments of streams have at most about 700 bytes."""

TAGS_PER_STREAM_MAX = 128
TAG_CHARACTERS_MAX = 256
TAGS_BYTES_MAX = 64 * 1024
"""All tags of one stream together, in UTF-8 (ours: fits 128 tags of 256 letters twice; bounds the record)."""

SEGMENTS_PER_STREAM_MAX = 1_000
"""Active segments of one stream (ours: keeps an epoch record far below DynamoDB's 400 KB)."""

PAGE_ITEMS_DEFAULT = 100
PAGE_ITEMS_MAX = 1_000
PAGE_BYTES_MAX = 1024 * 1024
"""A page of any list ends after this many bytes of records, even if the caller asked for more items.

A Lambda function returns at most 6 MB. An answer may exceed this bound by one record of 400 KB. JSON within JSON
doubles the size of text that consists of quotes and backslashes."""

EPOCHS_BETWEEN_MAX = 10_000
"""Epochs that one request for the segments between two stream cuts may span (ours: bounds its time)."""

SEGMENTS_BETWEEN_MAX = 20_000
"""Segments that one answer between two stream cuts may hold (ours: keeps it below Lambda's 6 MB)."""

SEGMENTS_PER_CUT_MAX = 4_000
"""Segments that one planned batch opens, and one scale more (ours: the next batch continues, so it bounds the time)."""

RANGES_PER_PLAN_MAX = 4_000
PIECES_PER_RANGE_MAX = 1_000
PIECES_PER_PLAN_MAX = 5_000
"""Ranges of one request for range plans, pieces of one range, and pieces of one answer (ours: they bound its time)."""

LINKS_PER_PLAN_MAX = 4_000
LINK_BYTES_PER_PLAN_MAX = 4 * 1024 * 1024
"""Links in the range plans of one answer, and their length as JSON (ours: keeps it below Lambda's 6 MB)."""

STREAM_CUT_TEXT_CHARACTERS_MAX = 256 * 1024
STREAM_CUT_PLAIN_BYTES_MAX = 1024 * 1024
"""A stream cut's text form, packed and unpacked (ours: 1,000 segments need about 50 KB unpacked)."""

TABLE_KEY_BYTES_MAX = 8 * 1024
TABLE_VALUE_BYTES_MAX = 1024 * 1024 - TABLE_KEY_BYTES_MAX
"""Largest key and largest value of a table (Pravega: 8 KiB for a key, 1 MiB for both together)."""

TABLE_PAGE_BYTES_MAX = 2 * 1024 * 1024
"""A page of a table's keys or entries ends after this many bytes, even if the client asked for more."""

READER_GROUP_STREAMS_MAX = 90
"""Streams of one reader group (ours: they are looked up in one batch read, with room for the group and its scope)."""

READER_GROUP_POSITIONS_MAX = 5_000
"""Segments in all stream cuts of one reader group (ours: keeps its record far below DynamoDB's 400 KB)."""

TABLE_PARTITIONS_MAX = 1_000
"""Segments of one key-value table (ours: as for a stream)."""

WRITER_KEPT_S_MIN = 3_600.0
"""The shortest time for which a segment keeps the last event number of a writer after its connection ended (ours)."""

EVENT_TIME_MS_MIN = 978_307_200_000
"""2001-01-01, long before the first event. Seconds of today, taken for milliseconds, are days of January 1970."""

WRITER_MARKS_PER_STREAM_MAX = 1_000
"""Writers of one stream that note their time (ours: a watermark is computed from all marks, in one read)."""
