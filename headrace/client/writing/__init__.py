"""Writers of events, one by one, in columns and in transactions."""
