#include "worker/node/network.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <set>

#include "common/rpc/endpoint.h"

namespace sft::worker {
namespace {

constexpr size_t kMaxSettings = 64, kMaxValue = 1024;

using AddressList = std::unique_ptr<ifaddrs, decltype(&freeifaddrs)>;

AddressList Addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) list = nullptr;
  return {list, &freeifaddrs};
}

bool IsSettingValue(std::string_view value) {
  return value.size() <= kMaxValue && std::all_of(value.begin(), value.end(), [](unsigned char c) {
           return c >= ' ' && c < 0x7f;
         });
}

std::vector<std::string_view> Split(std::string_view list) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t comma = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return parts;
}

}  // namespace

bool IsNetworkSetting(std::string_view name) {
  return (name.starts_with("NCCL_") || name.starts_with("UCX_")) &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isupper(c) != 0 || std::isdigit(c) != 0 || c == '_';
         });
}

absl::StatusOr<NetworkSettings> ParseNetworkSettings(std::string_view text) {
  NetworkSettings settings;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    const size_t equals = line.find('=');
    const std::string_view name = line.substr(0, equals);
    if (equals == line.npos || !IsNetworkSetting(name)) {
      return InvalidArgument(fmt::format(
          "line {}: \"{}\" is not NAME=VALUE with a variable of NCCL or UCX (NCCL_IB_HCA, "
          "UCX_NET_DEVICES)",
          number, line.substr(0, 80)));
    }
    const std::string_view value = line.substr(equals + 1);
    if (!IsSettingValue(value)) {
      return InvalidArgument(fmt::format(
          "line {}: the value of {} is longer than {} bytes or has other characters than ASCII",
          number, name, kMaxValue));
    }
    settings.insert_or_assign(std::string(name), std::string(value));
    if (settings.size() > kMaxSettings) {
      return InvalidArgument(fmt::format("line {}: more than {} variables", number, kMaxSettings));
    }
  }
  return settings;
}

NetworkSettings NetworkSettingsOfEnvironment() {
  NetworkSettings settings;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == text.npos || !IsNetworkSetting(text.substr(0, equals))) continue;
    const std::string_view value = text.substr(equals + 1);
    if (IsSettingValue(value)) settings.emplace(text.substr(0, equals), value);
  }
  return settings;
}

std::string InterfaceOf(const std::string& address) {
  if (rpc::IsLoopback(address)) return "lo";
  const AddressList list = Addresses();
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (entry->ifa_addr->sa_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(entry->ifa_addr)->sin_addr, text,
                sizeof(text));
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(entry->ifa_addr)->sin6_addr, text,
                sizeof(text));
    }
    if (address == text) return entry->ifa_name;
  }
  return "";
}

std::vector<std::string> InterfaceNames() {
  std::set<std::string> names;
  const AddressList list = Addresses();
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    names.insert(entry->ifa_name);
  }
  return {names.begin(), names.end()};
}

std::string ExactInterfaces(std::string_view list) {
  if (list.empty() || list.starts_with('^')) return std::string(list);
  std::vector<std::string_view> names = Split(list);
  for (std::string_view& name : names) {
    if (name.starts_with('=')) name.remove_prefix(1);
  }
  return fmt::format("={}", fmt::join(names, ","));  // one '=' for all of them
}

absl::Status CheckInterfaces(std::string_view variable, const std::vector<std::string>& names,
                             std::string_view node, std::string_view key) {
  std::string_view list = variable;
  const bool left_out = list.starts_with('^');
  if (left_out) list.remove_prefix(1);
  const bool exact = list.starts_with('=');
  if (exact) list.remove_prefix(1);
  const std::vector<std::string_view> wanted = Split(list);
  const bool any = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    const bool listed = std::any_of(wanted.begin(), wanted.end(), [&](std::string_view each) {
      return exact ? name == each : name.starts_with(each);
    });
    return listed != left_out;
  });
  if (any || list.empty()) return absl::OkStatus();
  return InvalidArgument(fmt::format(
      "node {} has no network interface for {} = \"{}\": it has {}", node, key,
      exact && !left_out ? std::string(list) : std::string(variable), fmt::join(names, ", ")));
}

}  // namespace sft::worker
