"""MLflow, through the user's own package: `mlflow` or `mlflow-skinny`."""

import typing

from ._scalars import scalars_of, seconds_of, settings_of

if typing.TYPE_CHECKING:
    from ..job import Job

# MLflow takes 1,000 values and 100 parameters a call.
_MOST_METRICS, _MOST_PARAMS, _MOST_TEXT = 500, 100, 500
_STATUS = {"SUCCEEDED": "FINISHED", "FAILED": "FAILED", "CANCELLED": "KILLED"}
_JOB, _NEXT = "sft.job", "sft.next"


def _run_of(client: typing.Any, entities: typing.Any, job: "Job", experiment: str) -> typing.Any:
    """The job's run, which has the job's id as a tag: of an earlier call, or a new one."""
    known = client.get_experiment_by_name(experiment)
    number = known.experiment_id if known else client.create_experiment(experiment)
    found = client.search_runs([number], f"tags.`{_JOB}` = '{job.id}'", max_results=1)
    if found:
        return found[0]
    run = client.create_run(number, start_time=int(1000 * seconds_of(job.raw["create_time"])), run_name=job.name,
                            tags={_JOB: job.id, _NEXT: "0", "sft.owner": job.owner, "sft.project": job.project})
    params = [entities.Param(key, value[:_MOST_TEXT]) for key, value in settings_of(job).items() if value]
    for begin in range(0, len(params), _MOST_PARAMS):
        client.log_batch(run.info.run_id, params=params[begin:begin + _MOST_PARAMS])
    return run


def mlflow(job: "Job", uri: str, live: bool = True, experiment: str = "sft") -> str:
    """Writes settings and curve into a run of the MLflow at `uri` (a server, "sqlite:///...", a folder), with `live` until
    the job has ended; returns the run's id. A second call goes on where the first ended: the run keeps the place."""
    import mlflow.entities as entities  # type: ignore
    from mlflow import MlflowClient  # type: ignore
    client = MlflowClient(tracking_uri=uri)
    run = _run_of(client, entities, job, experiment)
    run_id = str(run.info.run_id)
    for points, behind in job.batches(int(run.data.tags.get(_NEXT, "0")), live):
        metrics = [entities.Metric(name, value, int(1000 * seconds_of(point["time"])), point["step"])
                   for point in points for name, value in scalars_of(point).items()]
        for begin in range(0, len(metrics), _MOST_METRICS):
            client.log_batch(run_id, metrics=metrics[begin:begin + _MOST_METRICS])
        # Behind the values: MLflow keeps an equal value that comes twice once.
        client.set_tag(run_id, _NEXT, str(behind))
    job.refresh()
    if job.ended:
        client.set_terminated(run_id, _STATUS[job.state], int(1000 * seconds_of(job.raw["end_time"])))
    return run_id
