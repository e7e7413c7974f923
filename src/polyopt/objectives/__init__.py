"""Stage 7, objectives: what is the loss, as a function of log-probabilities?"""
