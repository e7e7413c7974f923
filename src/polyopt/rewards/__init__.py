"""Stage 3, rewards: what is a completion worth?"""
