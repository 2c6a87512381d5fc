#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "server/webhooks/address_guard.h"
#include "server/webhooks/mail.h"
#include "server/webhooks/webhook_transport.h"

namespace sft::server {

// Hands mails over. Used by one thread.
class MailTransport {
 public:
  virtual ~MailTransport() = default;
  // The status is that of SMTP. An error where there was no answer, or the relay could not be
  // trusted.
  virtual absl::StatusOr<WebhookAnswer> Send(const Mail& mail) = 0;
};

// Who takes mails of this server and brings them where they are to go.
struct MailRelay {
  std::string host;
  int port = 25;
  std::string from;      // the address that they come from
  bool starttls = true;  // nothing is sent before TLS
  std::string ca_file;   // authorities that vouch for it; empty: the system's
};
// From the text of an option: "smtp.example.com", "127.0.0.1:2525", "[::1]:25". `tls`: "off",
// "starttls"; empty: off on this machine alone.
absl::StatusOr<MailRelay> ParseMailRelay(const std::string& text, const std::string& from,
                                         const std::string& tls, const std::string& ca_file);

// By SMTP (RFC 5321), a connection for each mail, for which it has kTimeout.
class SmtpTransport final : public MailTransport {
 public:
  static constexpr std::chrono::seconds kTimeout{30};
  // Of one answer of the relay.
  static constexpr size_t kMostAnswer = size_t{16} << 10;

  // `clock` is borrowed. `resolve` null: the system is asked for the relay's name.
  SmtpTransport(MailRelay relay, Clock& clock, AddressGuard::Resolve resolve = nullptr);
  absl::StatusOr<WebhookAnswer> Send(const Mail& mail) override;

 private:
  const MailRelay relay_;
  Clock& clock_;
  const AddressGuard::Resolve resolve_;
};

}  // namespace sft::server
