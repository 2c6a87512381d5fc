"""What one caller gets of the OpenAI-compatible endpoint: run by openai_test.py in the Python environment
that has the client. Arguments: base URL, model, API key, and what it is to get: "answers", "loaded"
(answers, perhaps not yet) or the name of the client's error."""

import sys

import openai


def main(base, model, key, outcome):
    client = openai.OpenAI(base_url=base, api_key=key, max_retries=0)

    def ask():
        return client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}])
    if outcome in ("answers", "loaded"):
        assert ask().choices[0].message.content
        assert model in [each.id for each in client.models.list()]
        return
    kind = getattr(openai, outcome)
    for call in (ask, lambda: client.completions.create(model=model, prompt="hello", stream=True)):
        try:
            call()
        except kind as error:
            assert error.body["message"], error.body
        else:
            raise AssertionError(f"it was not refused with {outcome}")
    if kind is openai.NotFoundError:
        assert not list(client.models.list()), "models of another project"


if __name__ == "__main__":
    main(*sys.argv[1:])
