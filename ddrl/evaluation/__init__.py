"""Frozen parameters at work: scores, agents for other loops, exports, videos."""
