#include "server/webhooks/name_lookup.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/mutex.h"
#include "common/obs/log.h"

namespace sft::server {
namespace {

using Addresses = absl::StatusOr<std::vector<AddressGuard::Address>>;

struct Lookups {
  AddressGuard::Resolve resolve;
  Mutex mutex;
  int running SFT_GUARDED_BY(mutex) = 0;
};

// What the thread that looks up and the one that waits share, whichever ends last.
struct Lookup {
  Mutex mutex;
  CondVar done;
  std::optional<Addresses> addresses SFT_GUARDED_BY(mutex);
};

void Leave(Lookups& lookups) {
  const MutexLock lock(lookups.mutex);
  --lookups.running;
}

Addresses LookUp(const std::shared_ptr<Lookups>& lookups, const std::string& host,
                 std::chrono::nanoseconds patience, int most) {
  {
    const MutexLock lock(lookups->mutex);
    if (lookups->running >= most) {
      return Unavailable(
          fmt::format("{} names are being looked up already: try again later", lookups->running));
    }
    ++lookups->running;
  }
  const auto lookup = std::make_shared<Lookup>();
  try {
    std::thread([lookups, lookup, host] {
      obs::NameThread("name-lookup");
      Addresses addresses = lookups->resolve(host);
      Leave(*lookups);  // before whoever waits asks for the next one
      const MutexLock lock(lookup->mutex);
      lookup->addresses = std::move(addresses);
      lookup->done.NotifyAll();
    }).detach();
  } catch (const std::system_error& error) {
    Leave(*lookups);
    return Unavailable(fmt::format("no thread to look up {}: {}", host, error.what()));
  }
  const MutexLock lock(lookup->mutex);
  while (!lookup->addresses.has_value()) {
    if (lookup->done.WaitFor(lookup->mutex, patience)) continue;
    if (lookup->addresses.has_value()) break;
    return Unavailable(
        fmt::format("{} could not be looked up within {} s", host,
                    std::chrono::duration_cast<std::chrono::seconds>(patience).count()));
  }
  return *std::move(lookup->addresses);
}

}  // namespace

AddressGuard::Resolve BoundedLookup(AddressGuard::Resolve resolve,
                                    std::chrono::nanoseconds patience, int most) {
  const auto lookups = std::make_shared<Lookups>();
  lookups->resolve = std::move(resolve);
  return [lookups, patience, most](const std::string& host) {
    return LookUp(lookups, host, patience, most);
  };
}

Addresses AskSystem(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  std::vector<AddressGuard::Address> addresses;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) return addresses;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  for (; list != nullptr; list = list->ai_next) {
    AddressGuard::Address address;
    if (list->ai_family == AF_INET) {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(list->ai_addr);
      address.bytes[10] = address.bytes[11] = 0xff;
      std::memcpy(address.bytes + 12, &v4->sin_addr, 4);
    } else if (list->ai_family == AF_INET6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(list->ai_addr);
      std::memcpy(address.bytes, &v6->sin6_addr, sizeof(address.bytes));
    } else {
      continue;
    }
    addresses.push_back(address);
  }
  return addresses;
}

}  // namespace sft::server
