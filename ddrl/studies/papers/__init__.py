"""The studies of each paper."""
