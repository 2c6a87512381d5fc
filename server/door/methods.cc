#include "server/door/methods.h"

#include <algorithm>

namespace sft::server {

const Method* Methods::Find(std::string_view name) const {
  const auto found = methods_.find(name);
  return found == methods_.end() ? nullptr : &found->second;
}

bool Methods::HasService(std::string_view service) const {
  return std::any_of(methods_.begin(), methods_.end(), [&](const auto& method) {
    return std::string_view(method.first).substr(0, method.first.find('.')) == service;
  });
}

absl::Status Methods::ReadRequest(Exchange& exchange, google::protobuf::Message& request) {
  SFT_ASSIGN_OR_RETURN(const bool read, exchange.Read(request));
  return read ? absl::OkStatus() : absl::CancelledError("a call without a request");
}

void Methods::Add(Rule rule, Method::Kind kind,
                  std::function<absl::Status(Door&, CallContext&, Exchange&)> run) {
  Add(Method{std::move(rule), kind, std::move(run), nullptr});
}

void Methods::Add(Method method) {
  std::string name = method.rule.method;
  methods_.emplace(std::move(name), std::move(method));
}

}  // namespace sft::server
