#include "server/door/call_context.h"

namespace sft::server {
namespace {

// "ipv6:%5B::1%5D:5" as "ipv6:[::1]:5".
std::string PeerOf(std::string peer) {
  for (const auto& [code, sign] : {std::pair("%5B", "["), std::pair("%5D", "]")}) {
    const size_t at = peer.find(code);
    if (at != peer.npos) peer.replace(at, 3, sign);
  }
  return peer;
}

}  // namespace

CallContext::~CallContext() {
  if (!stream_of_.empty()) gate_.EndStream(stream_of_, rule_.method);
}

void CallContext::SpeaksFor(const std::string& user) {
  caller_.kind = Principal::Kind::kUser;
  caller_.name = user;
  if (audit_.has_value()) audit_->record.principal = user;
  SetObject("users/" + user);
}

void CallContext::SetObject(std::string object) {
  object_ = std::move(object);
  if (audit_.has_value()) audit_->record.object = object_;
}

std::optional<std::vector<std::string>> CallContext::ProjectsWith(Role least) const {
  if (caller_.admin) return std::nullopt;
  std::vector<std::string> projects;
  for (const auto& [project, role] : caller_.roles) {
    if (role >= least) projects.push_back(project);
  }
  return projects;
}

bool CallContext::Gone() {
  if (refusal_.ok()) refusal_ = AdmitStill();
  return !refusal_.ok() || exchange_->Gone();
}

AuditRecord CallContext::Record() const {
  return {.time_us = gate_.now_us(),
          .principal = caller_.name.empty() ? kNobody : caller_.Title(),
          .token = caller_.token,
          .peer = PeerOf(origin_.peer),
          .method = rule_.method,
          .object = object_};
}

}  // namespace sft::server
