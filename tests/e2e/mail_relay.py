"""A mail relay (aiosmtpd) for mail_test.py, in a process of its own: each mail that it takes is a line of JSON in a file.

    mail_relay.py PORT FILE [--tls CERTIFICATE KEY] [--refuse ADDRESS] [--defer NUMBER]

--tls: nothing is taken before STARTTLS. --refuse: there is no such mailbox. --defer: so many mails are put off first.
"""

import argparse
import json
import ssl
import time

from aiosmtpd.controller import Controller


class Keeper:
    def __init__(self, options):
        self.options = options
        self.deferred = 0

    async def handle_RCPT(self, _server, _session, envelope, address, rcpt_options):
        if address == self.options.refuse:
            return "550 5.1.1 There is no such mailbox"
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(rcpt_options)
        return "250 OK"

    async def handle_DATA(self, _server, session, envelope):
        if self.deferred < self.options.defer:
            self.deferred += 1
            return "451 4.3.0 Come back later"
        with open(self.options.file, "a", encoding="utf-8") as out:
            out.write(json.dumps({"from": envelope.mail_from, "to": envelope.rcpt_tos, "tls": session.ssl is not None,
                                  "data": envelope.content.decode("ascii")}) + "\n")
        return "250 OK"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("file")
    parser.add_argument("--tls", nargs=2)
    parser.add_argument("--refuse", default="")
    parser.add_argument("--defer", type=int, default=0)
    options = parser.parse_args()
    context = None
    if options.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*options.tls)
    controller = Controller(Keeper(options), hostname="127.0.0.1", port=options.port, tls_context=context,
                            require_starttls=context is not None)
    controller.start()
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
