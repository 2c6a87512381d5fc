#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace sft::server {

// Decides where the server may connect to for a webhook, so that nobody reaches through it what is
// behind it: loopback, links, private networks, metadata services of clouds. An operator allows
// more by name of the network. Thread-safe.
class AddressGuard {
 public:
  // An address as 16 bytes; IPv4 as IPv6 has it (::ffff:a.b.c.d).
  struct Address {
    unsigned char bytes[16] = {};
    bool operator==(const Address&) const = default;
  };
  // The addresses of a host's name; none where it has none, for whatever reason. UNAVAILABLE where
  // that is not known in time.
  using Resolve = std::function<absl::StatusOr<std::vector<Address>>(const std::string& host)>;

  // INVALID_ARGUMENT for a text that is no network, such as "10.1.0.0/16" or "fd00::/8"; one
  // without a length is one address. `resolve` null: the system is asked (BoundedLookup), with
  // threads that this guard and its copies have for themselves.
  static absl::StatusOr<AddressGuard> Make(const std::vector<std::string>& allowed,
                                           Resolve resolve = nullptr);

  // Where a connection for the URL goes: its name, looked up once, as the first of its addresses
  // that is allowed, with the port: "192.0.2.1:443", "[2001:db8::1]:443". PERMISSION_DENIED where
  // none is, in the same words whether or not there are others, or for http beyond loopback;
  // UNAVAILABLE as of Resolve.
  absl::StatusOr<std::string> Check(const std::string& url) const;

 private:
  struct Network {
    Address address;
    int bits = 0;
    bool Contains(const Address& other) const;
  };
  explicit AddressGuard(Resolve resolve) : resolve_(std::move(resolve)) {}
  static absl::StatusOr<Network> ParseNetwork(const std::string& text);
  bool Allows(const Address& address) const;

  std::vector<Network> allowed_;
  Resolve resolve_;
};

// Host and port of an http or https URL. INVALID_ARGUMENT for one that is none, that has a user, or
// that programs read differently.
struct WebhookTarget {
  bool tls = true;
  std::string host;  // without brackets
  int port = 443;
};
absl::StatusOr<WebhookTarget> TargetOf(const std::string& url);

}  // namespace sft::server
