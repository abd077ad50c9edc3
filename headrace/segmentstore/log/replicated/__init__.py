"""The log with copies: an owner's side, a replica's sessions, and what they share."""
