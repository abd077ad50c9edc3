"""The main job, end to end, on one machine: a year of flights through API, queues, segment stores, S3 and Spark."""
