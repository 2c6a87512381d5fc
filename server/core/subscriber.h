#pragma once

#include <string>

namespace sft::server {

// Who is to be counted as one by an address: what one subscriber of a network has, which is an
// address of IPv4, the whole of "2001:db8:0:1::/64" for one of IPv6. Empty: loopback, where a proxy
// may be.
std::string SubscriberOf(const std::string& address);

}  // namespace sft::server
