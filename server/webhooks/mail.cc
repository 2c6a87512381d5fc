#include "server/webhooks/mail.h"

#include <absl/strings/escaping.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/base/money.h"
#include "common/base/plain_text.h"

namespace sft::server {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostValue = 300;
// An encoded word has at most 75 characters (RFC 2047).
constexpr size_t kWordBytes = 45;
constexpr size_t kLine = 76;

// The value as one line of text; empty where there is none.
std::string ValueAt(const Json& data, const char* key) {
  if (!data.is_object() || !data.contains(key)) return "";
  const Json& value = data.at(key);
  return Plain(value.is_string() ? value.get<std::string>() : DumpJson(value), kMostValue);
}

std::string MoneyAt(const Json& data, const char* key) {
  if (!data.is_object() || !data.contains(key) || !data.at(key).is_number_integer()) return "";
  return MoneyText(data.at(key).get<int64_t>(), ValueAt(data, "currency"));
}

// "job.failed: my-run (job-abc) in project vision"
std::string SubjectOf(const std::string& type, const Json& data) {
  const std::string id = ValueAt(data, "id"), name = ValueAt(data, "display_name"),
                    project = ValueAt(data, "project"), node = ValueAt(data, "node");
  std::string subject = type;
  if (!id.empty()) {
    subject += name.empty() ? ": " + id : fmt::format(": {} ({})", name, id);
  } else if (!node.empty()) {
    subject += ": " + node;
  }
  if (!project.empty()) subject += fmt::format("{} project {}", id.empty() ? ":" : " in", project);
  return subject;
}

std::string TextOf(const std::string& type, const Json& event, const Json& data) {
  std::string text;
  const auto line = [&](const char* label, const std::string& value) {
    if (!value.empty()) text += fmt::format("{:<12} {}\n", label, value);
  };
  line("event", type);
  line("time", ValueAt(event, "timestamp"));
  line("job", ValueAt(data, "id"));
  line("name", ValueAt(data, "display_name"));
  line("project", ValueAt(data, "project"));
  line("owner", ValueAt(data, "owner"));
  line("state", ValueAt(data, "state"));
  if (data.is_object() && data.contains("verdict")) {
    line("verdict", ValueAt(data.at("verdict"), "code"));
    line("blames node", ValueAt(data.at("verdict"), "node"));
  }
  line("attempt", ValueAt(data, "attempt"));
  line("step", ValueAt(data, "step"));
  line("node", ValueAt(data, "node"));
  line("reason", ValueAt(data, "reason"));
  line("free bytes", ValueAt(data, "free_bytes"));
  line("spent", MoneyAt(data, "spent_micros"));
  line("budget", MoneyAt(data, "budget_micros"));
  line("webhook", ValueAt(data, "webhook"));
  const std::string id = ValueAt(data, "id");
  if (!id.empty()) text += fmt::format("\nsftctl status {}\n", id);
  return text;
}

bool IsPlainAscii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

// A header's value: text that could be read as anything else is in encoded words, each on a line of
// its own and none cut within a character.
std::string EncodedHeader(std::string_view text) {
  constexpr size_t kMostPlain = 200;
  if (IsPlainAscii(text) && text.find("=?") == std::string_view::npos &&
      text.size() <= kMostPlain) {
    return std::string(text);
  }
  std::string encoded;
  while (!text.empty()) {
    size_t size = std::min(text.size(), kWordBytes);
    // Continuation bytes of UTF-8.
    while (size > 1 && size < text.size() && (text[size] & 0xc0) == 0x80) --size;
    encoded += fmt::format("{}=?UTF-8?B?{}?=", encoded.empty() ? "" : "\r\n ",
                           absl::Base64Escape(absl::string_view(text.data(), size)));
    text.remove_prefix(size);
  }
  return encoded;
}

// "Fri, 27 Nov 2026 20:00:00 +0000"
std::string DateText(WallTime date) {
  return fmt::format("{:%a, %d %b %Y %H:%M:%S} +0000",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(
                         std::chrono::time_point_cast<std::chrono::system_clock::duration>(date))));
}

}  // namespace

Mail MailOf(const std::string& body) {
  const Json event = ParseJson(body);
  const std::string type = ValueAt(event, "type");
  const Json data = event.is_object() ? event.value("data", Json::object()) : Json::object();
  Mail mail;
  mail.subject = SubjectOf(type, data);
  mail.text = TextOf(type, event, data);
  return mail;
}

std::string WriteMail(const Mail& mail) {
  std::string text;
  for (const char c : mail.text) text += c == '\n' ? "\r\n" : std::string(1, c);
  const std::string encoded = absl::Base64Escape(text);
  std::string written = fmt::format(
      "Date: {}\r\nFrom: sft <{}>\r\nTo: <{}>\r\nMessage-ID: <{}@{}>\r\nSubject: {}\r\n"
      "Auto-Submitted: auto-generated\r\nMIME-Version: 1.0\r\n"
      "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\n",
      DateText(mail.date), mail.from, mail.to, mail.id, mail.from.substr(mail.from.find('@') + 1),
      EncodedHeader(Plain(mail.subject, 500)));
  for (size_t at = 0; at < encoded.size(); at += kLine) {
    written += encoded.substr(at, kLine) + "\r\n";
  }
  return written;
}

}  // namespace sft::server
