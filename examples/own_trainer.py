"""Our maths inside your own training loop: an objective needs log-probabilities, nothing else.

python examples/own_trainer.py
"""

from __future__ import annotations

import torch

import polyopt

recipe = polyopt.build("dr-grpo+ktae", {"objective.aggregation.length": 16.0})

# What your loop has: sampled tokens, which prompt each row belongs to, rewards, a mask.
tokens = torch.tensor([[5, 6, 7], [5, 8, 0], [9, 6, 7], [9, 8, 0]])
mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 0]])
rewards = torch.tensor([1.0, 0.0, 1.0, 0.0])
group = torch.tensor([0, 0, 1, 1])

batch = polyopt.Batch.of(mask=mask, rewards=rewards, group=group, tokens=tokens)
batch = recipe.advantages(batch)
print("advantages per token:\n", batch["advantages"])

# The log-probabilities of your model, with their graph; the old ones are constants.
logp = torch.full(mask.shape, -1.2, requires_grad=True)
batch = batch.replace(logp_old=torch.full(mask.shape, -1.3))
loss = recipe.objective(polyopt.Evaluation(logp), batch).loss
loss.backward()
print("loss", float(loss.detach()), "\ngradient at the boundary:\n", logp.grad)
