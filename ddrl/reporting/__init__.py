"""What a run tells: metrics, progress, the closing summary, TensorBoard events, figures."""
