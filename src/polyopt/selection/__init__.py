"""Stage 6, selection: which rollouts and tokens train, at what weight?"""
