#include "worker/node/node_facts.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>

#include "common/io/file.h"
#include "common/io/sha256.h"

namespace sft::worker {
namespace {

// Groups of GPUs connected by NVLink: all behind switches form one group, others are grouped by
// their links.
std::vector<std::string> DomainsOf(const std::vector<GpuReading>& gpus) {
  std::vector<size_t> group(gpus.size());
  std::iota(group.begin(), group.end(), size_t{0});
  const auto join = [&](size_t a, size_t b) {
    const size_t from = group[b], to = group[a];
    std::replace(group.begin(), group.end(), from, to);
  };
  for (size_t i = 0; i < gpus.size(); ++i) {
    for (size_t j = i + 1; j < gpus.size(); ++j) {
      const std::vector<std::string>& peers = gpus[i].link_peers;
      const bool direct = std::find(peers.begin(), peers.end(), gpus[j].pci) != peers.end();
      if (direct || (gpus[i].links_to_switch && gpus[j].links_to_switch)) join(i, j);
    }
  }
  std::vector<std::string> domains(gpus.size());
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i].active_links == 0) continue;
    // In a fabric over several nodes they share the cluster's name.
    domains[i] = gpus[i].cluster.empty() ? fmt::format("nvlink-{}", group[i]) : gpus[i].cluster;
  }
  return domains;
}

std::string InterconnectOf(const std::vector<GpuReading>& gpus,
                           const std::vector<std::string>& domains) {
  if (gpus.size() < 2) return "";
  std::map<std::string, int> sizes;
  int fewest = gpus.front().active_links;
  for (size_t i = 0; i < gpus.size(); ++i) {
    fewest = std::min(fewest, gpus[i].active_links);
    if (!domains[i].empty()) ++sizes[domains[i]];
  }
  if (sizes.empty()) return "PCIe";
  const bool all = sizes.size() == 1 && sizes.begin()->second == static_cast<int>(gpus.size());
  return all ? fmt::format("NVLink: {} GPUs, {} links each, all connected", gpus.size(), fewest)
             : fmt::format("NVLink: {} groups among {} GPUs", sizes.size(), gpus.size());
}

std::string FirstLine(const std::string& path) {
  const absl::StatusOr<std::string> text = io::ReadFile(path, 4096);
  return text.ok() ? text->substr(0, text->find('\n')) : "";
}

}  // namespace

v1::NodeFacts MakeFacts(const std::vector<GpuReading>& gpus, std::vector<std::string> networks) {
  v1::NodeFacts facts;
  if (!gpus.empty()) facts.set_driver_version(gpus.front().driver);
  const std::vector<std::string> domains = DomainsOf(gpus);
  for (size_t i = 0; i < gpus.size(); ++i) {
    v1::SlotLinks& links = *facts.add_links();
    links.set_slot(static_cast<int>(i));
    links.set_active_links(gpus[i].active_links);
    links.set_domain(domains[i]);
  }
  facts.set_interconnect(InterconnectOf(gpus, domains));
  for (std::string& network : networks) facts.add_networks(std::move(network));
  return facts;
}

absl::Status CheckPlace(std::string_view place) {
  constexpr int kMostParts = 8;
  constexpr size_t kLongestPart = 63;
  int parts = 0;
  for (std::string_view rest = place; !place.empty(); ++parts) {
    const size_t slash = std::min(rest.find('/'), rest.size());
    const std::string_view part = rest.substr(0, slash);
    const bool fits = !part.empty() && part.size() <= kLongestPart &&
                      std::all_of(part.begin(), part.end(), [](unsigned char c) {
                        return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
                      });
    if (!fits || parts == kMostParts) {
      return InvalidArgument(
          fmt::format("\"{}\" is no place: write up to {} names with '/' between them, the widest "
                      "part of the network first (block-a/rack-3/switch-2)",
                      place.substr(0, 80), kMostParts));
    }
    if (slash == rest.size()) break;
    rest.remove_prefix(slash + 1);
  }
  return absl::OkStatus();
}

v1::DataDirPlace PlaceOf(const std::string& dir, const std::string& machine_id) {
  v1::DataDirPlace place;
  std::string machine = FirstLine(machine_id);
  if (machine.empty()) machine = FirstLine("/proc/sys/kernel/hostname");
  place.set_machine(io::Sha256Hex("sft-worker " + machine).substr(0, 32));
  struct stat found {};
  if (::stat(dir.c_str(), &found) == 0) {
    place.set_device(found.st_dev);
    place.set_inode(found.st_ino);
  }
  place.set_path(dir);
  return place;
}

std::vector<std::string> ListNetworks(const std::string& root) {
  std::vector<std::string> networks;
  const auto devices = io::ListDir(root);
  if (!devices.ok()) return networks;  // no such hardware
  for (const std::string& device : *devices) {
    const std::string ports = fmt::format("{}/{}/ports", root, device);
    const auto numbers = io::ListDir(ports);
    if (!numbers.ok()) continue;
    for (const std::string& number : *numbers) {
      const std::string port = fmt::format("{}/{}/", ports, number);
      // "4: ACTIVE"
      const std::string state = FirstLine(port + "state");
      networks.push_back(fmt::format("{}: {} {}, {}", device, FirstLine(port + "link_layer"),
                                     FirstLine(port + "rate"),
                                     state.substr(std::min(state.size(), state.find(' ') + 1))));
    }
  }
  return networks;
}

}  // namespace sft::worker
