"""Stage 5, advantages: which rollout, segment, token deserves credit?"""
