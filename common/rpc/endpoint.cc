#include "common/rpc/endpoint.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace sft::rpc {

std::string Endpoint::ToString() const {
  if (host.find(':') != host.npos) return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host, port);
}

absl::StatusOr<Endpoint> ParseEndpoint(std::string_view text, bool allow_port_zero) {
  const auto bad = [&](std::string_view why) {
    return InvalidArgument(
        fmt::format("address \"{}\": {}; write HOST:PORT, for example 127.0.0.1:7070", text, why));
  };
  if (const size_t scheme = text.find("://"); scheme != text.npos) {
    return bad(fmt::format("goes without \"{}\"", text.substr(0, scheme + 3)));
  }
  const size_t colon = text.rfind(':');
  if (colon == text.npos) return bad("no port");
  std::string_view host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != host.npos) {
    return bad("an IPv6 address goes into brackets");
  }
  if (host.empty()) return bad("no host");
  Endpoint endpoint{std::string(host), 0};
  const std::string_view port = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
  if (error != std::errc() || end != port.data() + port.size()) return bad("the port is no number");
  if (endpoint.port < (allow_port_zero ? 0 : 1) || endpoint.port > 65535) {
    return bad("the port is not between 1 and 65535");
  }
  return endpoint;
}

absl::StatusOr<std::vector<Endpoint>> ParseEndpoints(std::string_view text) {
  std::vector<Endpoint> endpoints;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    SFT_ASSIGN_OR_RETURN(endpoints.emplace_back(), ParseEndpoint(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return endpoints;
}

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in6_addr v6{};
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  in_addr v4{};
  return inet_pton(AF_INET, host.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127;
}

}  // namespace sft::rpc
