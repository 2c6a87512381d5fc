#include "worker/engine/cuda/network_interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cstdlib>
#include <memory>

namespace sft::engine::cuda {
namespace {

std::string AddressText(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof(text));
  } else if (address.sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text,
              sizeof(text));
  }
  return text;
}

std::string InterfaceName(const std::string& bind) {
  if (if_nametoindex(bind.c_str()) != 0) return bind;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr != nullptr && AddressText(*entry->ifa_addr) == bind) return entry->ifa_name;
  }
  return {};
}

}  // namespace

void UseInterfaceOf(const std::string& bind) {
  const std::string name = InterfaceName(bind);
  if (!name.empty()) setenv("NCCL_SOCKET_IFNAME", ("=" + name).c_str(), /*overwrite=*/0);
}

}  // namespace sft::engine::cuda
