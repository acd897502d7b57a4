"""What a run tells: metrics, progress, the closing summary, callbacks and loggers, figures."""
