#include "server/webhooks/address_guard.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string_view>

#include "common/base/utf8.h"
#include "common/hub/http.h"
#include "server/webhooks/name_lookup.h"

namespace sft::server {
namespace {

using Address = AddressGuard::Address;

constexpr unsigned char kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// Networks of IPv4 that are not the internet's (IANA's special-purpose registry), and the address
// at which Azure serves its machines alone.
constexpr std::pair<const char*, int> kClosedV4[] = {
    {"0.0.0.0", 8},      {"10.0.0.0", 8},     {"100.64.0.0", 10}, {"127.0.0.0", 8},
    {"169.254.0.0", 16}, {"172.16.0.0", 12},  {"192.0.0.0", 24},  {"192.0.2.0", 24},
    {"192.88.99.0", 24}, {"192.168.0.0", 16}, {"198.18.0.0", 15}, {"198.51.100.0", 24},
    {"203.0.113.0", 24}, {"224.0.0.0", 4},    {"240.0.0.0", 4},   {"168.63.129.16", 32}};
// And of the part of IPv6 that is (2000::/3): addresses that hold others, and examples.
constexpr std::pair<const char*, int> kClosedV6[] = {
    {"2001::", 23}, {"2001:db8::", 32}, {"2002::", 16}, {"3fff::", 20}};
constexpr std::pair<const char*, int> kOpenV6 = {"2000::", 3};

// Null: no address.
std::unique_ptr<Address> Parse(const std::string& text) {
  Address address;
  if (inet_pton(AF_INET6, text.c_str(), address.bytes) == 1) {
    return std::make_unique<Address>(address);
  }
  if (inet_pton(AF_INET, text.c_str(), address.bytes + sizeof(kMapped)) != 1) return nullptr;
  std::ranges::copy(kMapped, address.bytes);
  return std::make_unique<Address>(address);
}

bool IsV4(const Address& address) {
  return std::equal(std::begin(kMapped), std::end(kMapped), address.bytes);
}

bool Begins(const Address& address, const Address& network, int bits) {
  const int whole = bits / 8, rest = bits % 8;
  if (!std::equal(address.bytes, address.bytes + whole, network.bytes)) return false;
  return rest == 0 || ((address.bytes[whole] ^ network.bytes[whole]) >> (8 - rest)) == 0;
}

bool IsIn(const Address& address, const std::pair<const char*, int>& network) {
  const std::unique_ptr<Address> begin = Parse(network.first);
  return Begins(address, *begin, network.second + (IsV4(*begin) ? 96 : 0));
}

bool IsLoopback(const Address& address) {
  static constexpr std::pair<const char*, int> kV4{"127.0.0.0", 8}, kV6{"::1", 128};
  return IsIn(address, kV4) || IsIn(address, kV6);
}

bool IsPublic(const Address& address) {
  const auto holds = [&](const auto& network) { return IsIn(address, network); };
  if (IsV4(address)) return std::ranges::none_of(kClosedV4, holds);
  return IsIn(address, kOpenV6) && std::ranges::none_of(kClosedV6, holds);
}

std::string TextOf(const Address& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (IsV4(address)) {
    inet_ntop(AF_INET, address.bytes + sizeof(kMapped), text, sizeof(text));
    return text;
  }
  inet_ntop(AF_INET6, address.bytes, text, sizeof(text));
  return fmt::format("[{}]", text);
}

// A whole number; -1: it is none.
int Number(std::string_view text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : -1;
}

}  // namespace

bool AddressGuard::Network::Contains(const Address& other) const {
  return Begins(other, address, bits);
}

absl::StatusOr<AddressGuard::Network> AddressGuard::ParseNetwork(const std::string& text) {
  const size_t slash = std::min(text.find('/'), text.size());
  const std::unique_ptr<Address> address = Parse(text.substr(0, slash));
  const int most = address != nullptr && IsV4(*address) ? 32 : 128;
  const int bits = slash == text.size() ? most : Number(std::string_view(text).substr(slash + 1));
  if (address == nullptr || bits < 0 || bits > most) {
    return InvalidArgument(
        fmt::format("\"{}\" is no network: write 10.1.0.0/16 or fd00::/8, or one address", text));
  }
  return Network{*address, bits + 128 - most};
}

absl::StatusOr<AddressGuard> AddressGuard::Make(const std::vector<std::string>& allowed,
                                                Resolve resolve) {
  AddressGuard guard(resolve == nullptr ? BoundedLookup(&AskSystem) : std::move(resolve));
  for (const std::string& text : allowed) {
    SFT_ASSIGN_OR_RETURN(const Network network, ParseNetwork(text));
    guard.allowed_.push_back(network);
  }
  return guard;
}

bool AddressGuard::Allows(const Address& address) const {
  return IsPublic(address) || std::ranges::any_of(allowed_, [&](const Network& network) {
           return network.Contains(address);
         });
}

absl::StatusOr<std::string> AddressGuard::Check(const std::string& url) const {
  SFT_ASSIGN_OR_RETURN(const WebhookTarget target, TargetOf(url));
  SFT_ASSIGN_OR_RETURN(const std::vector<Address> addresses, resolve_(target.host));
  for (const Address& address : addresses) {
    if (!Allows(address) || (!target.tls && !IsLoopback(address))) continue;
    return fmt::format("{}:{}", TextOf(address), target.port);
  }
  const bool http = !target.tls && std::ranges::any_of(addresses, [&](const Address& address) {
    return Allows(address);
  });
  if (http) {
    return PermissionDenied(
        fmt::format("{} is beyond this machine: its address has to be https", target.host));
  }
  // Whether there is another address, or which, would tell whoever may add webhooks what names
  // there are inside.
  return PermissionDenied(
      fmt::format("{} has no address in the internet: if it has one in another network, an "
                  "operator allows that with `sft-server --webhook-allow CIDR`",
                  target.host));
}

absl::StatusOr<WebhookTarget> TargetOf(const std::string& url) {
  const std::string origin = hub::OriginOf(url);
  const auto refuse = [] {
    return InvalidArgument(
        "a webhook's address is like https://example.com/hooks/1, without a user, spaces or "
        "characters "
        "that cannot be seen");
  };
  if (origin.empty() || !FindHidden(url).empty()) return refuse();
  WebhookTarget target;
  target.tls = origin.starts_with("https://");
  target.port = target.tls ? 443 : 80;
  std::string rest = origin.substr(origin.find("//") + 2);
  if (rest.starts_with('[')) {
    const size_t end = rest.find(']');
    if (end == rest.npos) return refuse();
    target.host = rest.substr(1, end - 1);
    rest.erase(0, end + 1);
  } else {
    target.host = rest.substr(0, rest.find(':'));
    rest.erase(0, target.host.size());
  }
  if (!rest.empty()) target.port = rest.front() == ':' ? Number(rest.substr(1)) : -1;
  if (target.host.empty() || target.port < 1 || target.port > 65535) return refuse();
  return target;
}

}  // namespace sft::server
