"""The loss that every golden uses."""

import torch


def causal_loss(logits, labels, reduction="mean"):
    """Cross-entropy of logits[t] with labels[t + 1] over the labels that are not -100.

    `mean` divides the sum by the number of those labels in the whole batch, once.
    """
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1),
        ignore_index=-100, reduction=reduction)
