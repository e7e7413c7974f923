"""Stage 2, rollouts: how are completions sampled?"""
