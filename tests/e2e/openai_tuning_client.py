"""What a program does with OpenAI's fine-tuning API, through the real `openai` client: run by openai_tuning_test.py in the
Python environment that has it. Arguments: what to do, base URL, API key, and what that takes."""

import json
import pathlib
import sys
import time

import openai

DEADLINE_S = 300
ENDED = ("succeeded", "failed", "cancelled")
# What a job of stand-in ranks is made of.
SMALL = {"sft": {"variant": "H100-1x", "set": {"hyperparameters.per_device_batch": 1, "hyperparameters.sequence_length": 64}}}


def refused(kind, call, param=None):
    """Calls what is to be refused, and returns the error."""
    try:
        call()
    except kind as error:
        assert param is None or error.param == param, (error.param, error.body)
        return error
    raise AssertionError(f"it was not refused with {kind.__name__}")


def upload(client, path):
    with open(path, "rb") as rows:
        return client.files.create(file=rows, purpose="fine-tune")


def wait_for(client, job, *statuses):
    end = time.monotonic() + DEADLINE_S
    while True:
        found = client.fine_tuning.jobs.retrieve(job)
        if found.status in statuses:
            return found
        assert found.status not in ENDED and time.monotonic() < end, found
        time.sleep(0.2)


def check_files(client, path):
    file = upload(client, path)
    assert client.files.wait_for_processing(file.id).status == "processed"
    assert (file.bytes, file.filename, file.purpose) == (path.stat().st_size, path.name, "fine-tune"), file
    assert client.files.content(file.id).read() == path.read_bytes()
    others = [upload(client, path) for _ in range(3)]
    assert [each.id for each in client.files.list(limit=2)] == [each.id for each in reversed([file, *others])]
    assert [each.id for each in client.files.list(order="asc", purpose="fine-tune")] == [file.id, *(each.id for each in others)]
    for each in others:
        assert client.files.delete(each.id).deleted
        refused(openai.NotFoundError, lambda: client.files.retrieve(each.id))  # noqa: B023
    refused(openai.BadRequestError, lambda: client.files.create(file=path, purpose="assistants"), "purpose")
    refused(openai.BadRequestError, lambda: client.files.create(file=("a.jsonl", b"no rows"), purpose="fine-tune"), "file")
    refused(openai.BadRequestError, lambda: client.files.create(
        file=path, purpose="fine-tune", expires_after={"anchor": "created_at", "seconds": 3600}), "expires_after")
    return file


def life(client, folder):
    """A job of the real engine, from its data to its model; prints its id and the model's name."""
    folder = pathlib.Path(folder)
    file = check_files(client, folder / "rows.jsonl")
    checked = upload(client, folder / "check.jsonl")
    job = client.fine_tuning.jobs.create(
        model="small", training_file=file.id, validation_file=checked.id, suffix="mine", seed=7, metadata={"team": "v"},
        method={"type": "supervised", "supervised": {"hyperparameters": {
            "n_epochs": 2, "batch_size": 2, "learning_rate_multiplier": 50}}},
        extra_body={"sft": {"variant": "CPU-1x", "set": {
            "lora.r": 4, "hyperparameters.sequence_length": 64, "hyperparameters.per_device_batch": 1,
            "checkpoint.save_strategy": "steps", "checkpoint.save_steps": 2,
            "training.validation.eval_steps": 2}}})
    assert (job.status, job.seed, job.metadata, job.validation_file) == ("queued", 7, {"team": "v"}, checked.id), job
    done = wait_for(client, job.id, *ENDED)
    assert done.status == "succeeded", done
    values = done.method.supervised.hyperparameters
    assert (values.n_epochs, values.batch_size, values.learning_rate_multiplier) == (2, 2, 50), values
    assert done.fine_tuned_model == f"ft:small:default:mine:{job.id}" and done.finished_at >= done.created_at, done
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=3))
    assert len({each.id for each in events}) == len(events) > 10
    assert [each.created_at for each in events] == sorted((each.created_at for each in events), reverse=True)
    points = [each.data for each in events if each.type == "metrics"]
    steps = [each["step"] for each in points if "train_loss" in each]
    assert steps == sorted(steps, reverse=True) and steps[-1] == 1 and len(set(steps)) == len(steps), steps
    assert any("valid_loss" in each for each in points), points
    saved = list(client.fine_tuning.jobs.checkpoints.list(job.id, limit=1))
    assert len(saved) > 1 and all(each.metrics.train_loss > 0 and each.fine_tuning_job_id == job.id for each in saved), saved
    assert saved[0].fine_tuned_model_checkpoint == f"{done.fine_tuned_model}@{saved[0].step_number}"
    table = client.files.content(done.result_files[0]).read().decode().splitlines()
    assert table[0].startswith("step,train_loss,valid_loss") and len(table) == len(points) + 1, table
    result = client.files.retrieve(done.result_files[0])
    assert (result.purpose, result.bytes) == ("fine-tune-results", len("\n".join(table)) + 1), result
    listed = list(client.files.list(purpose="fine-tune-results"))
    assert [(each.id, each.bytes) for each in listed] == [(each, None) for each in done.result_files], listed
    assert done.fine_tuned_model in [each.id for each in client.models.list()]
    assert client.models.retrieve(done.fine_tuned_model).owned_by == "default"
    assert [each.id for each in client.fine_tuning.jobs.list(metadata={"team": "v"})] == [job.id]
    print(json.dumps({"job": job.id, "model": done.fine_tuned_model}))


def dpo(client, folder):
    """A job that learns from preferences, in OpenAI's form of them; prints its id and the model's name."""
    path = pathlib.Path(folder) / "pairs.jsonl"
    method = {"type": "dpo", "dpo": {"hyperparameters": {"n_epochs": 2, "batch_size": 2, "beta": 0.3}}}
    sft = {"variant": "CPU-1x", "set": {"lora.r": 4, "hyperparameters.sequence_length": 64,
                                        "hyperparameters.per_device_batch": 1}}
    file = upload(client, path)
    job = client.fine_tuning.jobs.create(model="small", training_file=file.id, suffix="liked", method=method, extra_body={"sft": sft})
    done = wait_for(client, job.id, *ENDED)
    assert done.status == "succeeded", done
    values = done.method.dpo.hyperparameters
    assert (done.method.type, values.n_epochs, values.batch_size, values.beta) == ("dpo", 2, 2, 0.3), done.method
    points = [each.data for each in client.fine_tuning.jobs.list_events(job.id) if each.type == "metrics"]
    losses = [each["train_loss"] for each in reversed(points)]
    # The adapter does nothing at first: each answer is as likely as the reference says, which is ln 2.
    assert len(losses) == 8 and abs(losses[0] - 0.6931) < 0.001 and losses[-1] != losses[0], losses
    # Rows without a second answer are not for this method, and beta is not for the other.
    rows = upload(client, pathlib.Path(folder) / "rows.jsonl")
    refused(openai.BadRequestError, lambda: client.fine_tuning.jobs.create(
        model="small", training_file=rows.id, method=method, extra_body={"sft": sft}))
    refused(openai.BadRequestError, lambda: client.fine_tuning.jobs.create(
        model="small", training_file=file.id, method={"type": "supervised", "supervised": {"hyperparameters": {"beta": 0.3}}},
        extra_body={"sft": sft}), "method.supervised.hyperparameters.beta")
    print(json.dumps({"job": job.id, "model": done.fine_tuned_model}))


def chat(client, model):
    """Asks what was trained, by the name that the job got, once the job that serves it has loaded it."""
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}])
            break
        except (openai.InternalServerError, openai.NotFoundError):  # it loads; it has no place yet
            assert time.monotonic() < end
            time.sleep(0.5)
    assert answer.model == model and answer.choices[0].message.content, answer
    refused(openai.ConflictError, lambda: client.models.delete(model))


def delete(client, model):
    assert client.models.delete(model).deleted
    refused(openai.NotFoundError, lambda: client.models.retrieve(model), "model")
    assert model not in [each.id for each in client.models.list()]


def once(client, folder):
    """Through a proxy that drops the answers: each thing is made once."""
    again = client.with_options(max_retries=2)
    file = upload(again, pathlib.Path(folder) / "rows.jsonl")
    job = again.fine_tuning.jobs.create(model="tiny", training_file=file.id, extra_body=SMALL)
    assert [each.id for each in client.files.list()] == [file.id]
    assert [each.id for each in client.fine_tuning.jobs.list()] == [job.id]
    keyed = {"extra_headers": {"Idempotency-Key": "k"}, "extra_body": SMALL}
    first = again.fine_tuning.jobs.create(model="tiny", training_file=file.id, seed=1, **keyed)
    assert client.fine_tuning.jobs.create(model="tiny", training_file=file.id, seed=1, **keyed).id == first.id
    refused(openai.ConflictError, lambda: client.fine_tuning.jobs.create(model="tiny", training_file=file.id, seed=2, **keyed))
    assert len(list(client.fine_tuning.jobs.list(limit=1))) == 2


def pause(client, path, gate):
    """A job that runs is paused, goes on from where it was, and is done."""
    file = upload(client, pathlib.Path(path))
    job = client.fine_tuning.jobs.create(model="tiny", training_file=file.id, extra_body=SMALL)
    wait_for(client, job.id, "running")
    while not any(each.type == "metrics" for each in client.fine_tuning.jobs.list_events(job.id)):
        time.sleep(0.1)
    assert client.fine_tuning.jobs.pause(job.id).status == "pausing"
    paused = wait_for(client, job.id, "paused")
    saved = client.fine_tuning.jobs.checkpoints.list(job.id).data
    assert saved, "it was paused without a checkpoint"
    time.sleep(2)
    assert client.fine_tuning.jobs.retrieve(job.id).status == "paused", paused
    assert client.fine_tuning.jobs.resume(job.id).status == "queued"
    pathlib.Path(gate).write_text("")
    done = wait_for(client, job.id, *ENDED)
    assert done.status == "succeeded", done
    steps = [each.data["step"] for each in client.fine_tuning.jobs.list_events(job.id) if each.type == "metrics"]
    assert steps == sorted(steps, reverse=True) and steps[-1] == 1 and len(steps) == steps[0], "a gap or a double"
    refused(openai.ConflictError, lambda: client.fine_tuning.jobs.pause(job.id))
    assert client.fine_tuning.jobs.cancel(job.id).status == "succeeded"


def stranger(client, file, job, model):
    """Another project's things are not there, and nothing of them is told."""
    jobs, found = client.fine_tuning.jobs, openai.NotFoundError
    for call in (lambda: client.files.retrieve(file), lambda: client.files.content(file), lambda: client.files.delete(file),
                 lambda: client.files.list(after=file).data, lambda: jobs.retrieve(job), lambda: jobs.cancel(job),
                 lambda: jobs.pause(job), lambda: jobs.resume(job), lambda: jobs.list_events(job).data,
                 lambda: jobs.checkpoints.list(job).data, lambda: jobs.list(after=job).data,
                 lambda: client.files.content(f"file-{job}"), lambda: client.models.retrieve(model),
                 lambda: client.models.delete(model)):
        refused(found, call)
    refused(openai.BadRequestError, lambda: jobs.create(model="tiny", training_file=file), "training_file")
    refused(openai.BadRequestError, lambda: jobs.create(model="tiny", training_file="file-none"), "training_file")
    assert not list(client.files.list()) and not list(jobs.list()) and not list(client.models.list())


def owner(client, path):
    """Makes a file and a job, and prints their ids."""
    file = upload(client, pathlib.Path(path))
    job = client.fine_tuning.jobs.create(model="tiny", training_file=file.id, extra_body=SMALL)
    done = wait_for(client, job.id, *ENDED)
    print(json.dumps([file.id, job.id, done.fine_tuned_model]))


def viewer(client, path, job):
    """One who may look alone."""
    assert client.fine_tuning.jobs.retrieve(job).id == job
    refused(openai.PermissionDeniedError, lambda: client.fine_tuning.jobs.cancel(job))
    refused(openai.PermissionDeniedError, lambda: upload(client, pathlib.Path(path)))


def main(what, base, key, *arguments):
    globals()[what](openai.OpenAI(base_url=base, api_key=key, max_retries=0), *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
