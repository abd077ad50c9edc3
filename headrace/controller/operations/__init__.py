"""One module per operation: the work that a request asks for, in steps that may be repeated."""
