"""Thin shells for Spark's interfaces. Of the connector, only these and the jobs import pyspark.

`data_source`, `data_writers` and `stream_reader` need Spark 4.0 or later, `arrow_stream_writer` 4.1. The others work on
3.5 as well.
"""
