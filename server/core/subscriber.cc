#include "server/core/subscriber.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>

#include "common/rpc/endpoint.h"

namespace sft::server {

std::string SubscriberOf(const std::string& address) {
  const std::string host = address.substr(0, address.find('%'));  // without its interface
  in6_addr v6{};
  if (inet_pton(AF_INET6, host.c_str(), &v6) != 1) return rpc::IsLoopback(host) ? "" : host;
  char text[INET6_ADDRSTRLEN] = {};
  // How a socket of both families shows IPv4.
  if (IN6_IS_ADDR_V4MAPPED(&v6)) {
    return SubscriberOf(inet_ntop(AF_INET, v6.s6_addr + 12, text, sizeof(text)));
  }
  if (IN6_IS_ADDR_LOOPBACK(&v6)) return "";
  std::fill_n(v6.s6_addr + 8, 8, uint8_t{0});
  return fmt::format("{}/64", inet_ntop(AF_INET6, &v6, text, sizeof(text)));
}

}  // namespace sft::server
