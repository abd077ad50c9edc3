"""Headrace: elastic, transactional stream storage with Pravega's semantics, deployed into your own AWS account."""

__version__ = "0.2.0"
