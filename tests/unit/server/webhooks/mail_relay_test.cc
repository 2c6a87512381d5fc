#include "server/webhooks/mail_relay.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "tests/unit/server/loopback.h"

namespace sft::server {
namespace {

TEST(MailRelayTest, IsReadFromItsOptions) {
  const auto read = [](const std::string& text, const std::string& tls = "") {
    return ParseMailRelay(text, "sft@example.com", tls, "");
  };
  EXPECT_EQ(read("127.0.0.1")->port, 25);
  EXPECT_FALSE(read("127.0.0.1")->starttls) << "nobody is between";
  EXPECT_TRUE(read("127.0.0.1", "starttls")->starttls);
  EXPECT_TRUE(read("smtp.example.com:587")->starttls);
  EXPECT_EQ(read("smtp.example.com:587")->port, 587);
  EXPECT_FALSE(read("smtp.example.com", "off")->starttls);
  EXPECT_EQ(read("[::1]")->host, "::1");
  EXPECT_FALSE(read("smtp.example.com:x").ok());
  EXPECT_FALSE(read("smtp.example.com:0").ok());
  EXPECT_FALSE(ParseMailRelay("127.0.0.1", "sft", "", "").ok());
}

// A relay that says what a test wants: to the connection, and to each command by its first word.
class ScriptedRelay {
 public:
  using Answers = std::map<std::string, std::string>;
  explicit ScriptedRelay(Answers answers)
      : answers_(std::move(answers)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    // The transport hangs up in the middle of some answers.
    std::signal(SIGPIPE, SIG_IGN);
    sockaddr_in address = LoopbackAddress(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~ScriptedRelay() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  absl::StatusOr<WebhookAnswer> Send(bool starttls = false) const {
    MailRelay relay{"relay.invalid", port_, "sft@example.com", starttls, ""};
    SmtpTransport transport(relay, Clock::Real(), [](const std::string& host) {
      EXPECT_EQ(host, "relay.invalid");
      AddressGuard::Address loopback;
      EXPECT_EQ(inet_pton(AF_INET6, "::ffff:127.0.0.1", loopback.bytes), 1);
      return std::vector{loopback};
    });
    Mail mail;
    mail.id = "msg_1";
    mail.to = "ann@example.com";
    mail.subject = "hello";
    mail.text = "hello\n";
    return transport.Send(mail);
  }
  std::string said() const {
    const MutexLock lock(mutex_);
    return said_;
  }

 private:
  std::string AnswerTo(const std::string& word) const {
    static const Answers kUsual = {
        {"", "220 hello\r\n"},     {"EHLO", "250-relay\r\n250 8BITMIME\r\n"},
        {"MAIL", "250 ok\r\n"},    {"RCPT", "250 ok\r\n"},
        {"DATA", "354 go on\r\n"}, {".", "250 taken\r\n"}};
    const auto own = answers_.find(word);
    if (own != answers_.end()) return own->second;
    const auto usual = kUsual.find(word);
    return usual == kUsual.end() ? "" : usual->second;
  }
  // An empty answer closes the connection.
  bool Answer(const io::UniqueFd& connection, const std::string& word) const {
    const std::string answer = AnswerTo(word);
    return !answer.empty() && io::WriteAll(connection.get(), answer, "socket").ok();
  }
  void Serve() {
    while (true) {
      const io::UniqueFd connection(::accept(listener_.get(), nullptr, nullptr));
      if (connection.get() < 0) return;
      bool open = Answer(connection, ""), in_data = false;
      while (open) {
        const std::string line = ReadThrough(connection, "\n");
        if (line.empty()) break;
        {
          const MutexLock lock(mutex_);
          said_ += line;
        }
        std::string rest = line;
        for (size_t end; open && (end = rest.find("\r\n")) != std::string::npos;
             rest.erase(0, end + 2)) {
          const std::string word = rest.substr(0, std::min(end, rest.find_first_of(" :\r")));
          if (in_data && word != ".") continue;
          in_data = word == "DATA" && AnswerTo("DATA").starts_with("354");
          open = Answer(connection, word);
        }
      }
    }
  }

  const Answers answers_;
  const io::UniqueFd listener_;
  int port_ = 0;
  mutable Mutex mutex_;
  mutable std::string said_ SFT_GUARDED_BY(mutex_);
  std::thread thread_;
};

TEST(SmtpTransportTest, HandsAMailOver) {
  const ScriptedRelay relay({});
  const auto answer = relay.Send();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, 250);
  EXPECT_FALSE(answer->final || answer->gone);
  EXPECT_NE(relay.said().find(
                "MAIL FROM:<sft@example.com>\r\nRCPT TO:<ann@example.com>\r\nDATA\r\nDate: "),
            std::string::npos)
      << relay.said();
  EXPECT_NE(relay.said().find("\r\n.\r\n"), std::string::npos);
}

struct RelayCase {
  const char* name;
  const char* command;
  const char* answer;
  int status;
  bool final, gone;

  friend void PrintTo(const RelayCase& c, std::ostream* out) { *out << c.name; }
};

class RelayTableTest : public testing::TestWithParam<RelayCase> {};

TEST_P(RelayTableTest, SaysWhatCameOfIt) {
  const RelayCase& c = GetParam();
  const ScriptedRelay relay(ScriptedRelay::Answers{{c.command, c.answer}});
  const auto answer = relay.Send();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, c.status);
  EXPECT_EQ(answer->final, c.final);
  EXPECT_EQ(answer->gone, c.gone);
  EXPECT_NE(answer->said.find(std::to_string(c.status)), std::string::npos) << answer->said;
}

INSTANTIATE_TEST_SUITE_P(
    Cases, RelayTableTest,
    testing::Values(RelayCase{"it is busy", "", "421 later\r\n", 421, false, false},
                    RelayCase{"it serves others", "", "554 go away\r\n", 554, true, false},
                    RelayCase{"the sender is refused", "MAIL", "550 no\r\n", 550, true, false},
                    RelayCase{"greylisting", "RCPT", "450 later\r\n", 450, false, false},
                    RelayCase{"no such mailbox", "RCPT", "550-no\r\n550 such\r\n", 550, true, true},
                    RelayCase{"no data", "DATA", "451 later\r\n", 451, false, false},
                    RelayCase{"the mail is refused", ".", "554 spam\r\n", 554, true, false},
                    RelayCase{"the disk is full", ".", "452 full\r\n", 452, false, false}));

class BrokenRelayTest : public testing::TestWithParam<std::pair<const char*, std::string>> {};

TEST_P(BrokenRelayTest, IsAnErrorThatIsTriedAgain) {
  const auto& [command, said] = GetParam();
  const ScriptedRelay relay(ScriptedRelay::Answers{{command, said}});
  const auto answer = relay.Send();
  EXPECT_FALSE(answer.ok()) << answer->status;
  EXPECT_NE(answer.status().message().find("the mail relay relay.invalid"), std::string::npos)
      << answer.status();
}

INSTANTIATE_TEST_SUITE_P(Cases, BrokenRelayTest,
                         testing::Values(std::pair{"", "HTTP/1.1 400 Bad Request\r\n\r\n"},
                                         std::pair{"", "22\r\n"}, std::pair{"EHLO", ""},
                                         std::pair{".", ""}, std::pair{"DATA", "\r\n"},
                                         std::pair{"EHLO", std::string(100'000, 'x')},
                                         std::pair{"EHLO", [] {
                                                     std::string lines;
                                                     for (int i = 0; i < 5000; ++i)
                                                       lines += "250-more\r\n";
                                                     return lines;
                                                   }()}));

TEST(SmtpTransportTest, SendsNothingInTheClearWhereItHasToBeTls) {
  for (const char* hello : {"250 relay\r\n", "250-relay\r\n250 XSTARTTLS\r\n"}) {
    const ScriptedRelay relay(ScriptedRelay::Answers{{"EHLO", hello}});
    EXPECT_EQ(relay.Send(true).status().code(), absl::StatusCode::kUnauthenticated) << hello;
    EXPECT_EQ(relay.said().find("MAIL"), std::string::npos);
  }
  // What somebody between has put behind the answer would be read as if it had come with TLS.
  const ScriptedRelay forged(
      {{"EHLO", "250-relay\r\n250 STARTTLS\r\n"}, {"STARTTLS", "220 go\r\n250 all is well\r\n"}});
  EXPECT_EQ(forged.Send(true).status().code(), absl::StatusCode::kUnauthenticated);
  const ScriptedRelay refuses(
      {{"EHLO", "250-relay\r\n250 STARTTLS\r\n"}, {"STARTTLS", "454 no\r\n"}});
  EXPECT_EQ(refuses.Send(true)->status, 454);
  for (const ScriptedRelay* each : {&forged, &refuses}) {
    EXPECT_EQ(each->said().find("MAIL"), std::string::npos);
  }
}

}  // namespace
}  // namespace sft::server
