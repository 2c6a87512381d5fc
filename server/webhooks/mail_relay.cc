#include "server/webhooks/mail_relay.h"

#include <absl/strings/ascii.h>
#include <arpa/inet.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "common/base/mail_address.h"
#include "common/base/plain_text.h"
#include "common/rpc/endpoint.h"
#include "common/tls/client_socket.h"
#include "server/webhooks/name_lookup.h"

namespace sft::server {
namespace {

constexpr size_t kMostSaid = 250;

// What the relay answered: a code of three digits, and its text.
struct Reply {
  int code = 0;
  std::string text;  // lines with "\n" between them

  bool good() const { return code / 100 == 2; }
};

// The name by which this machine introduces itself.
std::string OwnName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "localhost";
  const std::string_view text(name);
  const bool sound = !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '.';
  });
  return sound ? std::string(text) : "localhost";
}

std::string DigitsOf(const AddressGuard::Address& address) {
  char text[INET6_ADDRSTRLEN] = {};
  constexpr unsigned char kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  const bool v4 = std::memcmp(address.bytes, kMapped, sizeof(kMapped)) == 0;
  inet_ntop(v4 ? AF_INET : AF_INET6, address.bytes + (v4 ? sizeof(kMapped) : 0), text,
            sizeof(text));
  return text;
}

WebhookAnswer AnswerOf(const char* step, const Reply& reply) {
  WebhookAnswer answer;
  answer.status = reply.code;
  answer.said = fmt::format("the relay answered {} to {}: {}", reply.code, step,
                            Plain(reply.text, kMostSaid));
  answer.final = reply.code / 100 == 5;
  return answer;
}

// One conversation with the relay.
class Dialog {
 public:
  explicit Dialog(std::unique_ptr<tls::ClientSocket> socket) : socket_(std::move(socket)) {}

  // The next answer, whole.
  absl::StatusOr<Reply> Listen() {
    Reply reply;
    for (size_t bytes = 0;;) {
      SFT_ASSIGN_OR_RETURN(const std::string line, ReadLine());
      bytes += line.size();
      const bool digits = line.size() >= 3 && line.find_first_not_of("0123456789") >= 3;
      if (!digits || bytes > SmtpTransport::kMostAnswer) {
        return Unavailable("what answers there does not speak SMTP");
      }
      reply.code = (line[0] - '0') * 100 + (line[1] - '0') * 10 + (line[2] - '0');
      if (line.size() > 4) reply.text += (reply.text.empty() ? "" : "\n") + line.substr(4);
      if (line.size() == 3 || line[3] != '-') return reply;
    }
  }
  absl::StatusOr<Reply> Say(const std::string& command) {
    SFT_RETURN_IF_ERROR(socket_->Write(command + "\r\n"));
    return Listen();
  }
  // What came in the clear behind the answer to STARTTLS was put there by somebody between.
  absl::Status StartTls(const MailRelay& relay) {
    if (!left_.empty()) return absl::UnauthenticatedError("the relay says more before TLS begins");
    return socket_->StartTls(relay.host, relay.ca_file);
  }
  absl::Status Write(std::string_view bytes) { return socket_->Write(bytes); }

 private:
  absl::StatusOr<std::string> ReadLine() {
    while (true) {
      const size_t end = left_.find('\n');
      if (end != std::string::npos) {
        std::string line = left_.substr(0, end);
        left_.erase(0, end + 1);
        if (line.ends_with('\r')) line.pop_back();
        return line;
      }
      if (left_.size() > SmtpTransport::kMostAnswer) {
        return Unavailable("what answers there does not speak SMTP");
      }
      SFT_ASSIGN_OR_RETURN(const std::string more, socket_->Read());
      if (more.empty()) return Unavailable("the relay has closed the connection");
      left_ += more;
    }
  }

  std::unique_ptr<tls::ClientSocket> socket_;
  std::string left_;
};

bool Offers(const Reply& hello, std::string_view extension) {
  const std::string text = absl::AsciiStrToUpper(hello.text) + "\n";
  return text.find(fmt::format("\n{}\n", extension)) != std::string::npos;
}

// Greetings, and TLS where it is asked for. The answer that ends it, where it is not good.
absl::StatusOr<std::optional<WebhookAnswer>> Begin(Dialog& dialog, const MailRelay& relay) {
  const std::string hello = "EHLO " + OwnName();
  SFT_ASSIGN_OR_RETURN(Reply reply, dialog.Listen());
  if (!reply.good()) return AnswerOf("the connection", reply);
  SFT_ASSIGN_OR_RETURN(reply, dialog.Say(hello));
  if (!reply.good()) return AnswerOf("EHLO", reply);
  if (!relay.starttls) return std::optional<WebhookAnswer>();
  if (!Offers(reply, "STARTTLS")) {
    return absl::UnauthenticatedError(
        "the relay does not offer STARTTLS, and mail is sent to it with TLS alone (--mail-tls)");
  }
  SFT_ASSIGN_OR_RETURN(reply, dialog.Say("STARTTLS"));
  if (!reply.good()) return AnswerOf("STARTTLS", reply);
  SFT_RETURN_IF_ERROR(dialog.StartTls(relay));
  SFT_ASSIGN_OR_RETURN(reply, dialog.Say(hello));
  if (!reply.good()) return AnswerOf("EHLO", reply);
  return std::optional<WebhookAnswer>();
}

absl::StatusOr<WebhookAnswer> HandOver(Dialog& dialog, const MailRelay& relay, const Mail& mail) {
  SFT_ASSIGN_OR_RETURN(const auto refused, Begin(dialog, relay));
  if (refused.has_value()) return *refused;
  SFT_ASSIGN_OR_RETURN(Reply reply, dialog.Say(fmt::format("MAIL FROM:<{}>", mail.from)));
  if (!reply.good()) return AnswerOf("MAIL FROM", reply);
  SFT_ASSIGN_OR_RETURN(reply, dialog.Say(fmt::format("RCPT TO:<{}>", mail.to)));
  if (!reply.good()) {
    WebhookAnswer answer = AnswerOf("RCPT TO", reply);
    answer.gone = answer.final;
    return answer;
  }
  SFT_ASSIGN_OR_RETURN(reply, dialog.Say("DATA"));
  if (reply.code != 354) return AnswerOf("DATA", reply);
  // No line of it begins with a point: its text is in base64.
  SFT_RETURN_IF_ERROR(dialog.Write(WriteMail(mail)));
  SFT_ASSIGN_OR_RETURN(reply, dialog.Say("."));
  // It is taken or not by now, whatever becomes of the connection.
  (void)dialog.Write("QUIT\r\n");
  return AnswerOf("the mail", reply);
}

}  // namespace

absl::StatusOr<MailRelay> ParseMailRelay(const std::string& text, const std::string& from,
                                         const std::string& tls, const std::string& ca_file) {
  const bool has_port = text.ends_with(']') ? false : text.find(':') != std::string::npos;
  SFT_ASSIGN_OR_RETURN(const rpc::Endpoint endpoint,
                       rpc::ParseEndpoint(has_port ? text : text + ":25"));
  if (!IsMailAddress(from)) {
    return InvalidArgument(
        fmt::format("\"{}\" is not the address of a mailbox such as sft@example.com", from));
  }
  const bool starttls = tls.empty() ? !rpc::IsLoopback(endpoint.host) : tls == "starttls";
  return MailRelay{endpoint.host, endpoint.port, from, starttls, ca_file};
}

SmtpTransport::SmtpTransport(MailRelay relay, Clock& clock, AddressGuard::Resolve resolve)
    : relay_(std::move(relay)),
      clock_(clock),
      resolve_(resolve == nullptr ? BoundedLookup(&AskSystem) : std::move(resolve)) {}

absl::StatusOr<WebhookAnswer> SmtpTransport::Send(const Mail& mail) {
  SFT_ASSIGN_OR_RETURN(const auto addresses, resolve_(relay_.host));
  absl::Status problem = Unavailable(fmt::format("{} has no address", relay_.host));
  for (const AddressGuard::Address& address : addresses) {
    auto socket = tls::ClientSocket::Connect(DigitsOf(address), relay_.port, kTimeout, clock_);
    problem = socket.status();
    if (!socket.ok()) continue;
    Dialog dialog(*std::move(socket));
    Mail sent = mail;
    sent.from = relay_.from;
    absl::StatusOr<WebhookAnswer> answer = HandOver(dialog, relay_, sent);
    if (!answer.ok()) {
      return Annotate(answer.status(),
                      fmt::format("the mail relay {}:{}", relay_.host, relay_.port));
    }
    return answer;
  }
  return Annotate(problem, fmt::format("the mail relay {}:{}", relay_.host, relay_.port));
}

}  // namespace sft::server
