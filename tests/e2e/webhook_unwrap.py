"""Takes what a webhook of OpenAI's format sent, as a receiver does with the stock `openai` client: JSON lines of [secret,
headers, body] on standard input; for each the event's class, type and job, or "bad", on standard output. Run in the Python
environment that has openai."""

import json
import sys

import openai

client = openai.OpenAI(api_key="unused")
for line in sys.stdin:
    secret, headers, body = json.loads(line)
    try:
        event = client.webhooks.unwrap(body, headers, secret=secret)
        print(type(event).__name__, event.type, event.data.id)
    except openai.InvalidWebhookSignatureError:
        print("bad")
