#pragma once

#include <string>

#include "common/base/clock.h"

// Mails about events. Pure.

namespace sft::server {

// One mail, before it is written out.
struct Mail {
  std::string id;  // the same for each try, so that a mailbox knows what it has
  std::string from, to;
  std::string subject;
  std::string text;  // UTF-8
  WallTime date{};
};

// From the body of a delivery: what happened, for people.
Mail MailOf(const std::string& body);

// As it is sent, with lines that end in CR LF (RFC 5322). Whatever stands in subject and text,
// nothing of it becomes a header or ends the mail: a subject beyond plain ASCII is encoded, and so
// is the text. The addresses are such as IsMailAddress takes.
std::string WriteMail(const Mail& mail);

}  // namespace sft::server
