"""The journal on a disk: files, records, commits, and the index of what they hold."""
