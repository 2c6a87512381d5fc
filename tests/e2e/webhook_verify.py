"""Verifies what a webhook sent, by the stock library: JSON lines of [secret, headers, body] on standard input, one word
for each on standard output. Run in the Python environment that has standardwebhooks."""

import json
import sys

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

for line in sys.stdin:
    secret, headers, body = json.loads(line)
    try:
        Webhook(secret).verify(body, headers)
        print("good")
    except WebhookVerificationError:
        print("bad")
