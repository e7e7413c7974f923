"""Stage 1, prompts: which prompts next, and how many rollouts each?"""
