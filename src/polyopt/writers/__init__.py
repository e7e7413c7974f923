"""Where a run's metrics go besides `metrics.jsonl`: TensorBoard files, W&B, trackio, your own."""
