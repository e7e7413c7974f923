"""Stage 4, replay: which past experience is mixed in?"""
