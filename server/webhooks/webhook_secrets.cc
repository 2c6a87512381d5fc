#include "server/webhooks/webhook_secrets.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <charconv>

#include "common/io/file.h"

namespace sft::server {
namespace {

constexpr std::string_view kPrefix = "whsec_";
constexpr int64_t kMostBytes = 16384;

// Lines "UNTIL_US SECRET", the newest first; 0: in use for good.
struct Kept {
  int64_t until_us = 0;
  std::string secret;
};

std::vector<Kept> ParseKept(const std::string& text) {
  std::vector<Kept> kept;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(text, '\n', absl::SkipEmpty()))) {
    const size_t space = std::min(line.find(' '), line.size());
    Kept& one = kept.emplace_back();
    std::from_chars(line.data(), line.data() + space, one.until_us);
    one.secret = line.substr(std::min(space + 1, line.size()));
  }
  return kept;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> WebhookSecrets::Get(const std::string& hook,
                                                             int64_t now_us) const {
  const auto text = io::ReadFile(dir_ + "/" + hook, kMostBytes);
  if (!text.ok()) {
    return FailedPrecondition(
        fmt::format("its secret cannot be read ({}); a backup has none: `sftctl webhook rotate {}` "
                    "makes a new one, a Slack address has to be added again",
                    Message(text.status()), hook));
  }
  std::vector<std::string> secrets;
  for (Kept& kept : ParseKept(*text)) {
    if (kept.until_us == 0 || kept.until_us > now_us) secrets.push_back(std::move(kept.secret));
  }
  return secrets;
}

absl::Status WebhookSecrets::Put(const std::string& hook, const std::string& secret,
                                 int64_t now_us) const {
  const std::string path = dir_ + "/" + hook;
  std::string text = fmt::format("0 {}\n", secret);
  const auto before = io::ReadFile(path, kMostBytes);
  if (before.ok()) {
    const std::vector<Kept> kept = ParseKept(*before);
    if (!kept.empty()) {
      text += fmt::format("{} {}\n", now_us + kOverlapUs, kept.front().secret);
    }
  }
  SFT_RETURN_IF_ERROR(io::MakeDirs(dir_));
  return io::WriteFileAtomic(path, text, io::kPrivateMode);
}

absl::Status WebhookSecrets::Remove(const std::string& hook) const {
  return io::RemoveAll(dir_ + "/" + hook);
}

absl::StatusOr<std::vector<std::string>> WebhookSecrets::List() const {
  if (!io::Exists(dir_)) return std::vector<std::string>();
  return io::ListDir(dir_);
}

std::string MakeWebhookSecret() {
  unsigned char bytes[32];
  // It fails only where the system has no randomness, as TLS would.
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) return "";
  return std::string(kPrefix) +
         absl::Base64Escape({reinterpret_cast<const char*>(bytes), sizeof(bytes)});
}

std::string SignWebhook(const std::vector<std::string>& secrets, std::string_view id,
                        int64_t seconds, std::string_view body) {
  const std::string text = fmt::format("{}.{}.{}", id, seconds, body);
  std::string header;
  for (std::string_view secret : secrets) {
    if (secret.starts_with(kPrefix)) secret.remove_prefix(kPrefix.size());
    std::string key;
    if (!absl::Base64Unescape(absl::string_view(secret.data(), secret.size()), &key)) continue;
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
         reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest, &size);
    header += header.empty() ? "v1," : " v1,";
    header += absl::Base64Escape({reinterpret_cast<const char*>(digest), size});
  }
  return header;
}

}  // namespace sft::server
