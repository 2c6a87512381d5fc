"""A job's curve in trackers, while it runs or afterwards. Each call may be repeated: it goes on where the last one ended.
It runs where it is called; a tracker that fails ends it with that tracker's error, and never touches the job."""

from ._mlflow import mlflow
from ._tensorboard import tensorboard
from ._wandb import wandb

__all__ = ["mlflow", "tensorboard", "wandb"]
