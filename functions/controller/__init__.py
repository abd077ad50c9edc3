"""The HTTP API, one function per noun: parse, call one service, convert, return."""
