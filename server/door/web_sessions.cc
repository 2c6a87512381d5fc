#include "server/door/web_sessions.h"

#include <algorithm>

#include "common/base/ids.h"
#include "common/io/sha256.h"

namespace sft::server {
namespace {

constexpr int kSecretLength = 52;  // characters of 5 bits each

}  // namespace

void WebSessions::SetUrl(std::string url) {
  const MutexLock lock(mutex_);
  url_ = std::move(url);
}

std::string WebSessions::url() const {
  const MutexLock lock(mutex_);
  return url_;
}

void WebSessions::Drop(Entries& entries, std::list<Entry>::iterator entry) {
  entries.by_hash.erase(entry->hash);
  entries.list.erase(entry);
}

void WebSessions::DropOld(Entries& entries, Nanos life) {
  const MonoTime now = clock_.Mono();
  while (!entries.list.empty() && now - entries.list.front().used >= life) {
    Drop(entries, entries.list.begin());
  }
}

std::string WebSessions::Add(Entries& entries, const std::string& token_id, Nanos life, bool owns) {
  DropOld(entries, life);
  const auto of_token = [&](const Entry& entry) { return entry.token_id == token_id; };
  if (std::ranges::count_if(entries.list, of_token) >= ptrdiff_t{kMostOfOne}) {
    Drop(entries, std::ranges::find_if(entries.list, of_token));
  } else if (entries.list.size() >= kMost) {
    Drop(entries, entries.list.begin());
  }
  std::string secret = RandomId("", kSecretLength);
  const std::string hash = io::Sha256Hex(secret);
  entries.by_hash[hash] =
      entries.list.insert(entries.list.end(), {hash, token_id, clock_.Mono(), owns});
  return secret;
}

std::string WebSessions::MakeCode(const std::string& token_id) {
  const MutexLock lock(mutex_);
  return Add(codes_, token_id, kCodeLife);
}

std::optional<std::string> WebSessions::TakeCode(const std::string& code) {
  const std::string hash = io::Sha256Hex(code);
  const MutexLock lock(mutex_);
  DropOld(codes_, kCodeLife);
  const auto found = codes_.by_hash.find(hash);
  if (found == codes_.by_hash.end()) return std::nullopt;
  std::string token_id = found->second->token_id;
  Drop(codes_, found->second);
  return token_id;
}

std::string WebSessions::Open(const std::string& token_id, bool owns) {
  const MutexLock lock(mutex_);
  return Add(sessions_, token_id, kIdle, owns);
}

std::string WebSessions::TokenOf(const std::string& secret) {
  const std::string hash = io::Sha256Hex(secret);
  const MutexLock lock(mutex_);
  DropOld(sessions_, kIdle);
  const auto found = sessions_.by_hash.find(hash);
  if (found == sessions_.by_hash.end()) return "";
  found->second->used = clock_.Mono();
  sessions_.list.splice(sessions_.list.end(), sessions_.list, found->second);
  return found->second->token_id;
}

bool WebSessions::Has(const std::string& secret) {
  const std::string hash = io::Sha256Hex(secret);
  const MutexLock lock(mutex_);
  DropOld(sessions_, kIdle);
  return sessions_.by_hash.contains(hash);
}

bool WebSessions::Close(const std::string& secret) {
  const std::string hash = io::Sha256Hex(secret);
  Entry closed;
  {
    const MutexLock lock(mutex_);
    DropOld(sessions_, kIdle);
    const auto found = sessions_.by_hash.find(hash);
    if (found == sessions_.by_hash.end()) return false;
    closed = *found->second;
    Drop(sessions_, found->second);
  }
  if (closed.owns) logged_out_(closed.token_id);
  return true;
}

}  // namespace sft::server
