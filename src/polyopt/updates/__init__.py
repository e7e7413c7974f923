"""Stage 8, updates: how are optimizer steps taken with the objective?"""
