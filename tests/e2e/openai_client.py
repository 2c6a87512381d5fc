"""What a program does with the OpenAI-compatible endpoint, through the real `openai` client: run by
openai_test.py in the Python environment that has it. Arguments: base URL, API key, model, how its
answer to "hello" begins."""

import json
import sys
import urllib.error
import urllib.request

import openai

HELLO = [{"role": "user", "content": "hello"}]


def refused(kind, call, *words):
    """Calls what is to be refused, and returns the error."""
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error}"
        return error
    raise AssertionError(f"it was not refused with {kind.__name__}")


def check_models(client, model):
    ids = [each.id for each in client.models.list()]
    assert ids == [model, model + ":base"], ids
    assert client.models.retrieve(model + ":base").id == model + ":base"
    error = refused(openai.NotFoundError, lambda: client.chat.completions.create(model="gpt-4o", messages=HELLO),
                    "gpt-4o", model)
    assert error.code == "model_not_found" and error.param == "model", error.body


def check_chat(client, model, said):
    whole = client.chat.completions.create(model=model, messages=HELLO, user="ann", store=False)
    assert whole.choices[0].message.content == said, whole
    assert whole.choices[0].finish_reason == "length" and whole.model == model
    assert whole.usage.completion_tokens == 12 and whole.usage.prompt_tokens == 5, whole.usage
    base = client.chat.completions.create(model=model + ":base", messages=HELLO)
    assert base.choices[0].message.content != said
    parts = [{"role": "developer", "content": ""},
             {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]
    assert client.chat.completions.create(model=model, messages=parts).choices[0].message.content == said
    stop = client.chat.completions.create(model=model, messages=HELLO, stop=said[3:5])
    assert stop.choices[0].message.content == said[:said.index(said[3:5])], stop
    assert stop.choices[0].finish_reason == "stop"
    short = client.chat.completions.create(model=model, messages=HELLO, max_completion_tokens=4, n=3)
    assert [each.message.content for each in short.choices] == [said[:4]] * 3, short


def check_sampling(client, model):
    def ask(**options):
        return client.chat.completions.create(model=model, messages=HELLO, temperature=3, **options)
    first, again = ask(seed=5, n=2), ask(seed=5, n=2)
    texts = [each.message.content for each in first.choices]
    assert texts == [each.message.content for each in again.choices] and texts[0] != texts[1], texts
    # The second choice is what its own seed gives.
    assert ask(seed=6).choices[0].message.content == texts[1]
    assert ask().choices[0].message.content != ask().choices[0].message.content
    banned = ask(seed=5, presence_penalty=2, frequency_penalty=2).choices[0].message.content
    assert banned != texts[0]


def check_stream(client, model, said):
    chunks = list(client.chat.completions.create(model=model, messages=HELLO, stream=True,
                                                 stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == said
    assert len(chunks) > 4, "it did not come in pieces"
    assert chunks[-2].choices[0].finish_reason == "length" and chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12
    texts = client.completions.create(model=model, prompt=["hello", "again"], stream=True, max_tokens=5)
    streamed = {0: "", 1: ""}
    for chunk in texts:
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    whole = client.completions.create(model=model, prompt=["hello", "again"], max_tokens=5)
    assert [each.text for each in whole.choices] == [streamed[0], streamed[1]]
    # Who hangs up has nothing more to do with it.
    with client.chat.completions.create(model=model, messages=HELLO, stream=True) as stream:
        next(iter(stream))


def check_logprobs(client, model, said):
    whole = client.chat.completions.create(model=model, messages=HELLO, logprobs=True, top_logprobs=3)
    tokens = whole.choices[0].logprobs.content
    assert "".join(each.token for each in tokens) == said
    for each in tokens:
        assert len(each.top_logprobs) == 3 and each.logprob <= 0
        # It answers with the likeliest.
        assert each.top_logprobs[0].token == each.token and each.top_logprobs[0].logprob == each.logprob
    streamed = []
    for chunk in client.chat.completions.create(model=model, messages=HELLO, logprobs=True, stream=True):
        if chunk.choices[0].logprobs is not None:
            streamed += [each.logprob for each in chunk.choices[0].logprobs.content]
    assert streamed == [each.logprob for each in tokens]

    ids = [40, 50, 60, 70]
    echo = client.completions.create(model=model, prompt=[ids, ids[:3]], max_tokens=1, echo=True, logprobs=1)
    first, second = (each.logprobs for each in echo.choices)
    assert first.token_logprobs[0] is None and len(first.tokens) == 5 and len(second.tokens) == 4
    assert first.token_logprobs[1:3] == second.token_logprobs[1:3], "a prompt's scores depend on what follows"
    assert first.text_offset == [0, 1, 2, 3, 4]
    # What the prompt's fourth token scores is what the answer says of that token at its place.
    top = client.completions.create(model=model, prompt=[ids[:3]], max_tokens=1, logprobs=5)
    rival = top.choices[0].logprobs
    assert abs(max(first.top_logprobs[3].values()) - rival.token_logprobs[0]) < 1e-4
    only = client.completions.create(model=model, prompt=ids, max_tokens=0, echo=True, logprobs=0)
    assert only.choices[0].logprobs.token_logprobs == first.token_logprobs[:4]
    assert only.usage.completion_tokens == 0
    echoed = client.completions.create(model=model, prompt="hello", max_tokens=2, echo=True)
    assert echoed.choices[0].text.startswith("hello") and len(echoed.choices[0].text) == 7


def check_refusals(client, model):
    def chat(**options):
        return lambda: client.chat.completions.create(model=model, **{"messages": HELLO, **options})

    def complete(**options):
        return lambda: client.completions.create(model=model, **{"prompt": "hello", **options})
    bad = openai.BadRequestError
    for call, param in ((chat(tools=[{"type": "function", "function": {"name": "f"}}]), "tools"),
                        (chat(temperature=-1), "temperature"), (chat(max_tokens=0), "max_tokens"),
                        (chat(n=100000), "n"), (chat(top_logprobs=2), "top_logprobs"),
                        (chat(logit_bias={"1": 5}), "logit_bias"), (chat(messages=[]), "messages"),
                        (chat(response_format={"type": "json_object"}), "response_format"),
                        (chat(extra_body={"no_such": 1}), "no_such"),
                        (chat(messages=[{"role": "tool", "content": "a", "tool_call_id": "b"}]), "messages[0].role"),
                        (chat(messages=HELLO + [{"role": "assistant", "content": "a"}]), "messages"),
                        (complete(prompt=[]), "prompt"), (complete(prompt=[[1, -1]]), "prompt[0]"),
                        (complete(prompt=["a"] * 200), "prompt"), (complete(prompt=["a"] * 64, n=3), "n"),
                        (complete(suffix="b"), "suffix"), (complete(logprobs=9), "logprobs"),
                        (complete(stop=[""]), "stop"), (complete(max_tokens=2 ** 70), "max_tokens")):
        error = refused(bad, call)
        assert error.param == param, (error.param, param)
    # The model takes 64 tokens.
    ids = [40 + i % 50 for i in range(200)]
    for call, words, param in ((complete(prompt=[[1, 99999]]), "99999", "prompt"),
                               (complete(prompt=""), "empty", "prompt"),
                               (complete(top_p=0.0), "top_p is 0", "top_p"),
                               (complete(extra_body={"repetition_penalty": 0}), "repetition_penalty", "repetition_penalty"),
                               (complete(extra_body={"repetition_penalty": 1e-300}), "repetition_penalty",
                                "repetition_penalty"),
                               (complete(prompt=ids), "200 tokens, and the model takes 64", "prompt"),
                               (complete(prompt=ids[:64]), "max_tokens 12", "prompt"),
                               (complete(prompt=ids[:65], max_tokens=0, echo=True, logprobs=0), "max_tokens 0", "prompt"),
                               (chat(messages=[{"role": "user", "content": "x" * 1000}]), "do not fit", "messages")):
        error = refused(bad, call, words)
        assert error.param == param, (error.param, param)
    whole = complete(prompt=ids[:64], max_tokens=0, echo=True, logprobs=0)()
    assert len(whole.choices[0].logprobs.tokens) == 64
    for asked in (10 ** 6, 10 ** 15):
        long = chat(max_tokens=asked)()
        assert long.choices[0].finish_reason == "stop" or long.usage.total_tokens == 64, long.usage
    greedy = chat()().choices[0].message.content
    for temperature in (5e-324, 1e-300, 1e-38, 1e-36):
        assert chat(temperature=temperature)().choices[0].message.content == greedy, temperature


def check_raw(base, key):
    """What no client sends."""
    def post(page, body, **fields):
        request = urllib.request.Request(base.removesuffix("/v1") + page, data=body, method="POST")
        for name, value in {"Authorization": "Bearer " + key, "Content-Type": "application/json", **fields}.items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
    for body, words in ((b"{", "not JSON"), (b"[1]", "not an object"), (b'{"prompt": "\xff"}', "not JSON"),
                        (b'{"prompt": "a", "prompt": "b"}', "prompt"), (b"[" * 10000, "not JSON")):
        status, answer = post("/v1/completions", body)
        assert status == 400 and words in answer["error"]["message"], (status, answer)
    assert post("/v1/completions", b'{"prompt": "a"}', **{"Content-Type": "text/plain"})[0] == 400
    assert post("/v1/completions", b'{"prompt": "' + b"x" * (5 << 20) + b'"}')[0] == 413
    status, answer = post("/v1/completions", b'{"prompt": "a", "metadata": [' + b"[]," * 200000 + b"[]]}")
    assert status == 400 and "at most 100000" in answer["error"]["message"], (status, answer)
    assert post("/v1/models", b"{}")[0] == 405
    assert post("/v1/nothing", b"{}")[0] == 404
    status, tokens = post("/tokenize", json.dumps({"prompt": "ab</s>", "add_special_tokens": False}).encode())
    assert status == 200 and tokens["tokens"][-1] == 2 and tokens["count"] == 3, tokens
    status, text = post("/detokenize", json.dumps({"tokens": tokens["tokens"]}).encode())
    assert (status, text) == (200, {"prompt": "ab</s>"}), text
    assert post("/detokenize", b'{"tokens": [70000]}')[0] == 400


def main(base, key, model, said):
    client = openai.OpenAI(base_url=base, api_key=key, max_retries=0)
    check_models(client, model)
    check_chat(client, model, said)
    check_sampling(client, model)
    check_stream(client, model, said)
    check_logprobs(client, model, said)
    check_refusals(client, model)
    check_raw(base, key)
    # Below the job's own address a model need not be the right one's name.
    of_job = openai.OpenAI(base_url=base.removesuffix("/v1") + f"/jobs/{model}/v1", api_key=key, max_retries=0)
    assert of_job.chat.completions.create(model=model, messages=HELLO).choices[0].message.content == said
    refused(openai.NotFoundError, lambda: of_job.chat.completions.create(model="other", messages=HELLO))
    print("the client got what it asked for")


if __name__ == "__main__":
    main(*sys.argv[1:])
