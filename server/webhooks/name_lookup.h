#pragma once

#include <chrono>

#include "server/webhooks/address_guard.h"

namespace sft::server {

// Has `resolve` look up names in threads of their own, as the system's call has no deadline:
// UNAVAILABLE after `patience`, and at once while `most` look-ups are under way. One that is waited
// for no longer ends by the system's own limits, and counts until then. What it returns and its
// copies, which share this, are thread-safe.
AddressGuard::Resolve BoundedLookup(AddressGuard::Resolve resolve,
                                    std::chrono::nanoseconds patience = std::chrono::seconds(5),
                                    int most = 8);

// What the system says: /etc/hosts, DNS.
absl::StatusOr<std::vector<AddressGuard::Address>> AskSystem(const std::string& host);

}  // namespace sft::server
