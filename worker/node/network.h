#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

// A node's network as its ranks are told of it.

namespace sft::worker {

// Variables of NCCL and UCX by their names.
using NetworkSettings = std::map<std::string, std::string>;

// Whether a variable may be one of them: NCCL_..., UCX_....
bool IsNetworkSetting(std::string_view name);

// Those of a file (sft-worker --network-env): a line each, NAME=VALUE, empty lines and lines that
// begin with '#' aside. INVALID_ARGUMENT for any other line, naming it.
absl::StatusOr<NetworkSettings> ParseNetworkSettings(std::string_view text);

// Those of this process whose values such a file could have.
NetworkSettings NetworkSettingsOfEnvironment();

// Name of the network interface that has the address; "lo" for a loopback address, empty when none
// has.
std::string InterfaceOf(const std::string& address);

// Names of this machine's network interfaces, each once.
std::vector<std::string> InterfaceNames();

// compute.network_interface as NCCL_SOCKET_IFNAME, in which a bare name would stand for all that
// begin with it: "eth0,eth1" becomes "=eth0,eth1"; what is left out by '^' stays.
std::string ExactInterfaces(std::string_view list);

// INVALID_ARGUMENT when `variable`, a value of NCCL_SOCKET_IFNAME, fits none of `names`. The
// message names `node` and `key`, where the value is from, and what there is.
absl::Status CheckInterfaces(std::string_view variable, const std::vector<std::string>& names,
                             std::string_view node, std::string_view key);

}  // namespace sft::worker
