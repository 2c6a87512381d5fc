#include "worker/rank/preflight.h"

#include <ATen/Version.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/base/duration.h"
#include "common/base/json.h"
#include "common/io/file.h"
#include "worker/engine/base/error.h"
#include "worker/engine/kernels/ops.h"
#include "worker/rank/preflight_judge.h"

namespace sft::rank {
namespace {

using engine::Communicator;

constexpr int kTries = 5;  // the best of which counts
constexpr int64_t kMatrix = 8192;
constexpr int64_t kProbeBytes = 256 << 10, kMostGathered = 64 << 20;
// About how long a gather may take: a slow network gets less than kMostGathered, one that is too
// slow for the probe nothing more.
constexpr double kGatherSeconds = 0.03;
constexpr size_t kPastKept = 16, kPastNeeded = 3;

// "torch 2.11.0, driver 570.86.15, NVIDIA H100 80GB HBM3"
std::string VersionsHere(const Device& device) {
  constexpr std::string_view kTorch = "TORCH_VERSION=";
  const std::string config = at::show_config();
  const size_t at = config.find(kTorch);
  std::string text = "torch ";
  text += at == config.npos ? "of an unknown version"
                            : config.substr(at + kTorch.size(),
                                            config.find_first_of(", \n", at) - at - kTorch.size());
  if (device.cuda == nullptr) return text;
  const auto driver = io::ReadFile("/sys/module/nvidia/version", 256);
  if (driver.ok()) text += ", driver " + driver->substr(0, driver->find('\n'));
  return text + ", " + device.cuda->devices->Properties(device.torch.index()).name;
}

// Earlier figures of this node, by what they are of and how many ranks took part.
class Past {
 public:
  Past(std::string cache_dir, std::string kind)
      : path_(cache_dir + "/preflight.json"), kind_(std::move(kind)) {
    const auto text = io::ReadFile(path_, int64_t{1} << 20);
    if (text.ok()) all_ = ParseJson(*text);
    if (!all_.is_object()) all_ = nlohmann::json::object();
  }

  double Median(const std::string& what) const {
    std::vector<double> values = ValuesOf(what);
    return values.size() < kPastNeeded ? 0 : UpperMedian(std::move(values));
  }
  void Add(const std::string& what, double value) {
    if (!std::isfinite(value) || value <= 0) return;
    std::vector<double> values = ValuesOf(what);
    values.push_back(value);
    if (values.size() > kPastKept) values.erase(values.begin());
    all_[Key(what)] = values;
  }
  void Save() const {
    const absl::Status saved = io::WriteFileAtomic(path_, DumpJson(all_));
    if (!saved.ok()) fmt::print("the preflight's figures are not kept: {}\n", Message(saved));
  }

 private:
  std::string Key(const std::string& what) const { return what + " " + kind_; }
  std::vector<double> ValuesOf(const std::string& what) const {
    std::vector<double> values;
    const auto found = all_.find(Key(what));
    if (found == all_.end() || !found->is_array()) return values;
    for (const nlohmann::json& each : *found) {
      if (each.is_number()) values.push_back(each.get<double>());
    }
    return values;
  }

  const std::string path_, kind_;
  nlohmann::json all_ = nlohmann::json::object();
};

class Preflight {
 public:
  Preflight(const channel::RankLaunch& file, int rank, const Device& device, Communicator& comm,
            Clock& clock)
      : file_(file),
        rank_(rank),
        device_(device),
        comm_(comm),
        clock_(clock),
        per_node_(static_cast<size_t>(file.local_ranks)),
        nodes_(static_cast<size_t>(file.world_size) / per_node_),
        here_(static_cast<size_t>(rank) / per_node_),
        past_(file.cache_dir,
              fmt::format("{} {}", file.local_ranks,
                          device.cuda == nullptr
                              ? "cpu"
                              : device.cuda->devices->Properties(device.torch.index()).name)) {}

  PreflightFigures Measure() {
    nlohmann::json mine = {
        {"node", file_.node},
        {"versions", VersionsHere(device_)},
        {"past", {past_.Median("product"), past_.Median("inside"), past_.Median("between")}}};
    if (device_.cuda != nullptr) {
      mine["product"] = Product();
      if (per_node_ > 1) mine["inside"] = Inside();
    }
    nlohmann::json& links = mine["links"] = nlohmann::json::array();
    for (const auto& round : PreflightRounds(nodes_)) {
      for (const auto& [a, b] : round) {
        if (a != here_ && b != here_) continue;
        const auto [rate, latency] = Between(a, b);
        links.push_back({a, b, rate, latency});
      }
    }
    comm_.Barrier();
    mine["wall_us"] = UnixMicros(clock_.Wall());
    if (device_.cuda != nullptr) device_.cuda->devices->ReleaseCached(device_.torch.index());
    return Gather(DumpJson(mine));
  }

  // Of this node, for later ones.
  void Keep(const PreflightFigures& figures) {
    const PreflightNode& own = figures.nodes[here_];
    past_.Add("product", UpperMedian(own.products));
    if (!own.inside.empty()) past_.Add("inside", own.inside.front());
    std::vector<double> rates;
    for (const PreflightLink& link : figures.links) {
      if (link.a == here_ || link.b == here_) rates.push_back(link.gigabytes_per_second);
    }
    past_.Add("between", UpperMedian(rates));
    past_.Save();
  }

  bool FirstOfNode() const { return rank_ == file_.first_rank; }
  size_t here() const { return here_; }

 private:
  template <typename Run>
  double Seconds(const Run& run) const {
    const MonoTime begin = clock_.Mono();
    run();
    if (device_.cuda != nullptr) device_.cuda->devices->Synchronize(device_.torch.index());
    return SecondsOf(clock_.Mono() - begin);
  }
  template <typename Run>
  double Best(const Run& run) const {
    double best = std::numeric_limits<double>::max();
    for (int i = 0; i < kTries; ++i) best = std::min(best, Seconds(run));
    return std::max(best, 1e-9);
  }

  // 10^12 operations a second.
  double Product() const {
    const auto options = at::TensorOptions(device_.torch).dtype(at::kBFloat16);
    const at::Tensor x = at::randn({kMatrix, kMatrix}, options);
    at::Tensor y = at::empty_like(x);
    const auto run = [&] { engine::ops::Gemm(y, x, x.t(), 1.0, 0.0); };
    Seconds(run);  // loads the library
    const double seconds = Best(run);
    // A GPU that computes nonsense: a row with itself is a sum of squares.
    const double square = y[0][0].item<double>();
    const double expected = x[0].to(at::kDouble).square().sum().item<double>();
    const bool right = std::abs(square - expected) < 0.05 * expected;
    if (!right) return std::numeric_limits<double>::quiet_NaN();
    return 2 * std::pow(static_cast<double>(kMatrix), 3) / seconds / 1e12;
  }

  // GB/s that each of the group sends to a neighbour when all gather.
  double GatherRate(Communicator& group) const {
    const auto options = at::TensorOptions(device_.torch).dtype(at::kByte);
    const int world = group.world();
    const auto run_of = [&](int64_t bytes) {
      const at::Tensor part = at::zeros({bytes / world}, options);
      const at::Tensor whole = at::empty({bytes / world * world}, options);
      return [&group, part, whole] { group.AllGather(whole, part); };
    };
    const auto sent = [&](int64_t bytes) {
      return static_cast<double>(bytes / world) * (world - 1) / 1e9;
    };
    const auto probe = run_of(kProbeBytes);
    Seconds(probe);  // connects
    // The slowest decides, as all have to gather the same.
    const std::vector<int64_t> micros =
        engine::AllGatherInt64(group, 1 + static_cast<int64_t>(1e6 * Seconds(probe)));
    const double slowest = 1e-6 * static_cast<double>(*std::ranges::max_element(micros));
    if (slowest > kGatherSeconds) return sent(kProbeBytes) / slowest;
    const auto bytes = static_cast<int64_t>(std::min(
        static_cast<double>(kMostGathered), kGatherSeconds / slowest * double{kProbeBytes}));
    const auto run = run_of(bytes);
    Seconds(run);
    return sent(bytes) / Best(run);
  }

  double Inside() const {
    if (nodes_ == 1) return GatherRate(comm_);
    std::vector<int> members;
    for (int i = 0; i < file_.local_ranks; ++i) members.push_back(file_.first_rank + i);
    return GatherRate(*Group(members));
  }

  // By a name of its own: the training's groups of the same ranks come after it.
  std::unique_ptr<engine::Communicator> Group(const std::vector<int>& members) const {
    if (members.size() == 1) return engine::MakeSubgroup(comm_, members);
    return comm_.Connect(fmt::format("preflight/{}", fmt::join(members, ",")), members);
  }

  // Rate and latency between this rank and that of its place on the other node.
  std::pair<double, double> Between(size_t a, size_t b) const {
    const size_t place = static_cast<size_t>(rank_) % per_node_;
    const auto pair =
        Group({static_cast<int>(a * per_node_ + place), static_cast<int>(b * per_node_ + place)});
    at::Tensor least = at::zeros({1}, at::TensorOptions(device_.torch).dtype(at::kFloat));
    const double latency = Best([&] { pair->AllReduceSum(least); });
    return {GatherRate(*pair), 1e6 * latency};
  }

  // Every rank's own, as all ranks know them then.
  PreflightFigures Gather(const std::string& mine) const {
    PreflightFigures figures;
    figures.nodes.resize(nodes_);
    std::map<std::pair<size_t, size_t>, PreflightLink> links;
    const std::vector<std::string> all = engine::AllGatherStrings(comm_, mine);
    for (size_t r = 0; r < all.size(); ++r) {
      const nlohmann::json said = ParseJson(all[r]);
      if (!said.is_object()) throw engine::InternalError("a rank's preflight cannot be read");
      PreflightNode& node = figures.nodes[r / per_node_];
      // Not a number is null in JSON.
      const auto number = [](const nlohmann::json& value) {
        return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
      };
      if (said.contains("product")) node.products.push_back(number(said["product"]));
      if (r % per_node_ == 0) {
        node.name = said["node"].get<std::string>();
        node.versions = said["versions"].get<std::string>();
        node.wall_us = said["wall_us"].get<int64_t>();
        node.past = {number(said["past"][0]), number(said["past"][1]), number(said["past"][2])};
        if (said.contains("inside")) node.inside.push_back(number(said["inside"]));
      }
      for (const nlohmann::json& each : said["links"]) {
        const std::pair ends(each[0].get<size_t>(), each[1].get<size_t>());
        const double rate = number(each[2]), latency = number(each[3]);
        const auto [place, is_new] =
            links.try_emplace(ends, PreflightLink{ends.first, ends.second, rate, latency});
        PreflightLink& link = place->second;
        if (is_new) continue;
        if (!(rate >= link.gigabytes_per_second)) link.gigabytes_per_second = rate;
        link.latency_us = std::min(link.latency_us, latency);
      }
    }
    for (const auto& [ends, link] : links) figures.links.push_back(link);
    return figures;
  }

  const channel::RankLaunch& file_;
  const int rank_;
  const Device& device_;
  Communicator& comm_;
  Clock& clock_;
  const size_t per_node_, nodes_, here_;
  Past past_;
};

void PrintFigures(const PreflightFigures& figures, double seconds) {
  fmt::print("preflight in {:.1f} s:\n", seconds);
  for (const PreflightNode& node : figures.nodes) {
    std::string line = fmt::format("  node {}: {}", node.name, node.versions);
    if (!node.products.empty()) {
      const auto [least, most] = std::minmax_element(node.products.begin(), node.products.end());
      line += fmt::format(", products {:.0f} to {:.0f} TFLOP/s", *least, *most);
    }
    for (const double rate : node.inside) {
      line += fmt::format(", {:.3g} GB/s a GPU between its GPUs", rate);
    }
    fmt::print("{}\n", line);
  }
  for (const PreflightLink& link : figures.links) {
    fmt::print("  nodes {} and {}: {:.3g} GB/s a rank, {:.0f} us for the smallest message\n",
               figures.nodes[link.a].name, figures.nodes[link.b].name, link.gigabytes_per_second,
               link.latency_us);
  }
}

}  // namespace

void RunPreflight(const Launch& launch, int rank, const Device& device, engine::Communicator& comm,
                  EventLog& events, Clock& clock) {
  const channel::RankLaunch& file = launch.file;
  // CPUs of one node share its memory and cores: there is nothing between them to measure.
  const bool one_node = file.local_ranks == file.world_size;
  if (device.cuda == nullptr && one_node) return;
  const MonoTime begin = clock.Mono();
  Preflight preflight(file, rank, device, comm, clock);
  const PreflightFigures figures = preflight.Measure();
  if (rank == 0) PrintFigures(figures, SecondsOf(clock.Mono() - begin));
  if (preflight.FirstOfNode()) preflight.Keep(figures);
  const std::vector<PreflightFinding> findings = JudgePreflight(figures);
  if (findings.empty()) return;
  for (const PreflightFinding& finding : findings) {
    if (rank != 0) break;
    fmt::print("warning: {}\n", finding.text);
    events.Write(channel::WarningEvent{.message = finding.text, .kind = "preflight"});
  }
  const PreflightFinding& worst = findings.front();
  if (!worst.broken) return;
  if (static_cast<int>(preflight.here()) == worst.blamed) {
    throw engine::InfrastructureError(
        worst.text, "preflight_failed",
        "The job is placed again, on other nodes if there are any. Look at that node's GPUs, cards "
        "and cables; compute.preflight = false starts jobs all the same.");
  }
  throw engine::InfrastructureError("ends as the preflight found that " + worst.text,
                                    "collective_failed");
}

}  // namespace sft::rank
