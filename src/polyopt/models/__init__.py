"""The policy: a Hugging Face causal language model seen through log-probabilities."""
