#pragma once

#include <string>

namespace sft::server {

// The key under which limits count an address: an IPv4 address itself, and for IPv6 its /64
// ("2001:db8:0:1::/64"), which one subscriber of a network has. Empty for loopback, where a proxy
// may be.
std::string SubscriberOf(const std::string& address);

}  // namespace sft::server
