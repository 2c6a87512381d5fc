#include "server/door/gate.h"

#include <fmt/format.h>

#include "server/core/subscriber.h"

namespace sft::server {
namespace {

constexpr std::chrono::seconds kTellAgain{10};
constexpr size_t kMaxTold = 4096;

// Whose "ipv4:10.0.0.3:4711" is (SubscriberOf).
std::string SubscriberOfPeer(const std::string& peer) {
  const size_t begin = peer.find(':'), end = peer.rfind(':');
  if (begin == peer.npos || end <= begin) return "";
  std::string host = peer.substr(begin + 1, end - begin - 1);
  if (host.starts_with("%5B") && host.size() > 6) host = host.substr(3, host.size() - 6);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  return SubscriberOf(host);
}

}  // namespace

absl::StatusOr<Principal> Gate::Authenticate(const CallOrigin& origin) const {
  if (open_) {
    Principal local;
    local.kind = Principal::Kind::kUser;
    local.name = kLocalPrincipal;
    local.local = local.admin = true;
    return local;
  }
  constexpr std::string_view kBearer = "Bearer ";
  // A node that joins anew shows its token beside a certificate that may be too old.
  const std::string_view authorization = origin.authorization;
  if (authorization.starts_with(kBearer)) {
    return access_.OfToken(authorization.substr(kBearer.size()));
  }
  if (!origin.certificate_pem.empty()) return access_.OfCertificate(origin.certificate_pem);
  if (!origin.session_token.empty()) return access_.OfSession(origin.session_token);
  return absl::UnauthenticatedError(
      "this server asks for a token: `sftctl login HOST:PORT` keeps one, SFT_TOKEN gives one");
}

bool Gate::IsNews(const std::string& key) {
  const MutexLock lock(mutex_);
  const MonoTime now = clock_.Mono();
  if (told_.size() >= kMaxTold) told_.clear();
  const auto [at, first] = told_.try_emplace(key, now);
  if (!first && now - at->second < kTellAgain) return false;
  at->second = now;
  return true;
}

absl::Status Gate::BeginStream(const std::string& who, int limit, const std::string& kind) {
  const MutexLock lock(mutex_);
  const auto of_one = streams_of_.try_emplace(who, 0).first;
  if (of_one->second >= limit || streams_ >= kMaxStreams) {
    const absl::Status refusal = ResourceExhausted(fmt::format(
        "{} of {} streams are open already, {} of them of {}: end one (`--follow`, uploads and "
        "downloads hold one each), or try again later",
        streams_, kMaxStreams, of_one->second, who));
    if (of_one->second == 0) streams_of_.erase(of_one);
    return refusal;
  }
  ++of_one->second;
  ++streams_by_kind_[kind];
  ++streams_;
  return absl::OkStatus();
}

void Gate::EndStream(const std::string& who, const std::string& kind) {
  const MutexLock lock(mutex_);
  --streams_;
  --streams_by_kind_[kind];
  const auto of_one = streams_of_.find(who);
  if (--of_one->second == 0) streams_of_.erase(of_one);
}

absl::StatusOr<std::shared_ptr<void>> Gate::EnterAsAnybody(const std::string& peer) {
  const std::string subscriber = SubscriberOfPeer(peer);
  const MutexLock lock(mutex_);
  const auto here = anybody_at_.try_emplace(subscriber, 0).first;
  if (anybody_ >= kMostOfAnybody || (!subscriber.empty() && here->second >= kMostOfSubscriber)) {
    if (here->second == 0) anybody_at_.erase(here);
    return ResourceExhausted("too many logins are under way: try again later");
  }
  ++here->second;
  ++anybody_;
  return std::shared_ptr<void>(this, [this, subscriber](void*) {
    const MutexLock ended(mutex_);
    --anybody_;
    if (--anybody_at_[subscriber] == 0) anybody_at_.erase(subscriber);
  });
}

std::map<std::string, int> Gate::streams() const {
  const MutexLock lock(mutex_);
  return streams_by_kind_;
}

}  // namespace sft::server
