#include "worker/rank/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "worker/engine/base/phase_span.h"

namespace sft::rank {
namespace {

// In the order in which they count.
enum Kind : size_t {
  kAttention,
  kProducts,
  kElementwise,
  kQuantisation,
  kOptimizer,
  kCopies,
  kCommunication,
  kData,
  kIdle,
  kHost,
  kKinds,
  // No kinds: communication under way of which the host does not know when it ended, and steps.
  kUnderWay = kKinds,
  kInStep,
  kCounted,
};
constexpr std::array<std::string_view, kKinds> kNames = {
    "attention", "products", "norms and element-wise", "quantisation",
    "optimizer", "copies",   "communication",          "data",
    "idle",      "host"};

// Parts of names of operations and kernels, ours, LibTorch's and those of NVIDIA's libraries; the
// first that fits counts. What none fits is element-wise.
struct Word {
  Kind kind;
  std::string_view text;
};
constexpr Word kWords[] = {
    {kCommunication, "nccl"},
    {kAttention, "ttention"},
    {kAttention, "Attend"},
    {kAttention, "fmha"},
    {kAttention, "flash"},
    {kAttention, "sdpa"},
    {kAttention, "cudnn"},
    {kAttention, "Delta"},
    {kAttention, "Sinks"},
    {kAttention, "ShortConv"},
    {kAttention, "Slab"},
    {kAttention, "WindowParts"},
    {kAttention, "WindowOffset"},
    {kAttention, "Ragged"},
    {kAttention, "ScanKernel"},
    {kAttention, "ScanBackward"},
    {kProducts, "gemm"},
    {kProducts, "Gemm"},
    {kProducts, "nvjet"},
    {kProducts, "cutlass"},
    {kProducts, "cublas"},
    {kProducts, "splitK"},
    {kProducts, "xmma"},
    {kProducts, "gemv"},
    {kProducts, "s16816"},
    {kProducts, "RowProduct"},
    {kProducts, "GroupedGradient"},
    {kProducts, "Multiply"},
    {kProducts, "::Run<"},
    {kProducts, "aten::mm"},
    {kProducts, "aten::addmm"},
    {kProducts, "aten::bmm"},
    {kProducts, "aten::matmul"},
    {kQuantisation, "uantize"},
    {kQuantisation, "Nf4"},
    {kQuantisation, "Mxfp4"},
    {kQuantisation, "Absmax"},
    {kQuantisation, "LargestKernel"},
    {kOptimizer, "Adam"},
    {kCopies, "Memcpy"},
    {kCopies, "Memset"},
    {kCopies, "copy"},
    {kCopies, "Copy"},
    {kCopies, "fill"},
    {kCopies, "Fill"},
    {kCopies, "TakeRows"},
    {kCopies, "Transpose"},
};
// Whole names: of LibTorch's operations that copy, and of those that compute nothing.
constexpr std::string_view kCopying[] = {"aten::to",  "aten::zero_", "aten::clone",
                                         "aten::cat", "aten::stack", "aten::contiguous"};
constexpr std::string_view kNotComputing[] = {
    "aten::empty",        "aten::empty_like", "aten::empty_strided",
    "aten::resize_",      "aten::narrow",     "aten::slice",
    "aten::select",       "aten::view",       "aten::reshape",
    "aten::as_strided",   "aten::t",          "aten::transpose",
    "aten::unsqueeze",    "aten::expand",     "aten::detach",
    "sft::EmptyAtTheEnd", "sft::EmptyPinned"};

Kind KindOfName(std::string_view name) {
  if (std::ranges::find(kCopying, name) != std::end(kCopying)) return kCopies;
  if (std::ranges::find(kNotComputing, name) != std::end(kNotComputing)) return kHost;
  const auto* const fits = std::ranges::find_if(
      kWords, [&](const Word& word) { return name.find(word.text) != name.npos; });
  return fits == std::end(kWords) ? kElementwise : fits->kind;
}

// Whether the span is called so, with its number if it has one.
bool IsCalled(const TraceEvent& event, std::string_view name) {
  return event.kind == TraceEvent::Kind::kSpan && event.name.starts_with(name) &&
         (event.name.size() == name.size() || event.name[name.size()] == ' ');
}

int64_t NumberOf(const TraceEvent& event, std::string_view name) {
  int64_t number = 0;
  const char* const end = event.name.data() + event.name.size();
  std::from_chars(std::min(event.name.data() + name.size() + 1, end), end, number);
  return number;
}

void FindSteps(Recording& recording, int64_t skip, int64_t most) {
  for (const TraceEvent& event : recording.events) {
    if (!IsCalled(event, engine::kStepSpan)) continue;
    recording.steps.push_back({NumberOf(event, engine::kStepSpan), event.begin_ns, event.end_ns});
  }
  auto& steps = recording.steps;
  const auto all = static_cast<int64_t>(steps.size());
  steps.erase(steps.begin(),
              steps.begin() + std::clamp<int64_t>(skip, 0, std::max<int64_t>(all - 1, 0)));
  if (std::ssize(steps) > most) steps.resize(static_cast<size_t>(most));
}

bool InSomeStep(const Recording& recording, const TraceEvent& event) {
  return std::ranges::any_of(recording.steps, [&](const Recording::Step& step) {
    return event.begin_ns < step.end_ns && event.end_ns >= step.begin_ns;
  });
}

void FindPaths(Recording& recording) {
  struct Open {
    int64_t end_ns;
    int path;
  };
  std::map<int64_t, std::vector<Open>> open_of_lane;
  std::map<std::pair<int, std::string>, int> known;  // by the outer path and the span's name
  std::unordered_map<uint64_t, int> path_of_launch;
  recording.paths = {""};
  for (TraceEvent& event : recording.events) {
    if (event.on_gpu()) continue;
    std::vector<Open>& open = open_of_lane[event.lane];
    while (!open.empty() && open.back().end_ns <= event.begin_ns) open.pop_back();
    event.path = open.empty() ? 0 : open.back().path;
    if (event.kind == TraceEvent::Kind::kRuntime && event.launch != 0) {
      path_of_launch[event.launch] = event.path;
    }
    if (event.kind != TraceEvent::Kind::kSpan) continue;
    int inner = 0;
    if (!IsCalled(event, engine::kStepSpan)) {
      const auto [found, fresh] =
          known.try_emplace({event.path, event.name}, static_cast<int>(recording.paths.size()));
      if (fresh) {
        const std::string outer = recording.paths[event.path];
        recording.paths.push_back(outer.empty() ? event.name : outer + " > " + event.name);
      }
      inner = found->second;
    }
    open.push_back({event.end_ns, inner});
  }
  for (TraceEvent& event : recording.events) {
    if (!event.on_gpu() || event.launch == 0) continue;
    const auto found = path_of_launch.find(event.launch);
    if (found != path_of_launch.end()) event.path = found->second;
  }
}

// Begins and ends of what counts, and what each instant of the steps goes to.
class Sweep {
 public:
  void Add(int64_t begin_ns, int64_t end_ns, size_t what) {
    edges_.push_back({begin_ns, what, 1});
    edges_.push_back({end_ns, what, -1});
  }

  void Run() {
    std::ranges::sort(edges_, {}, &Edge::at_ns);
    std::array<int, kCounted> active{};
    int64_t last = 0;
    for (const Edge& edge : edges_) {
      if (active[kInStep] > 0) Count(active, edge.at_ns - last);
      last = edge.at_ns;
      active[edge.what] += edge.change;
    }
  }

  int64_t of(size_t kind) const { return sums_[kind]; }
  int64_t hidden() const { return hidden_; }

 private:
  struct Edge {
    int64_t at_ns;
    size_t what;
    int change;
  };

  void Count(const std::array<int, kCounted>& active, int64_t ns) {
    size_t kind = 0;
    while (kind < kHost && active[kind] == 0) ++kind;
    sums_[kind] += ns;
    if (kind < kCommunication && active[kCommunication] + active[kUnderWay] > 0) hidden_ += ns;
  }

  std::vector<Edge> edges_;
  std::array<int64_t, kKinds> sums_{};
  int64_t hidden_ = 0;
};

// The kind of a span that counts as a whole, whatever lies in it.
std::optional<Kind> KindOfSpan(const TraceEvent& event) {
  if (IsCalled(event, engine::kDataSpan)) return kData;
  if (IsCalled(event, engine::kWaitSpan)) return kCommunication;
  if (IsCalled(event, engine::kOptimizerSpan)) return kOptimizer;
  return std::nullopt;
}

void AddCpu(const Recording& recording, Sweep& sweep) {
  int64_t lane = 0;
  int64_t busy_until = 0;
  std::map<int64_t, int64_t> started;  // collectives, and when
  for (const TraceEvent& event : recording.events) {
    if (IsCalled(event, engine::kStepSpan)) lane = event.lane;
    if (event.lane != lane) continue;
    if (IsCalled(event, engine::kStartSpan)) {
      started[NumberOf(event, engine::kStartSpan)] = event.end_ns;
    }
    if (IsCalled(event, engine::kWaitSpan)) {
      const auto begun = started.find(NumberOf(event, engine::kWaitSpan));
      if (begun != started.end()) sweep.Add(begun->second, event.end_ns, kUnderWay);
    }
    std::optional<Kind> kind = KindOfSpan(event);
    if (event.kind == TraceEvent::Kind::kOperation) kind = KindOfName(event.name);
    if (!kind || event.begin_ns < busy_until) continue;
    sweep.Add(event.begin_ns, event.end_ns, *kind);
    busy_until = event.end_ns;
  }
}

void AddGpu(const Recording& recording, Sweep& sweep) {
  std::vector<bool> optimizer;  // by path
  for (const std::string& path : recording.paths) {
    optimizer.push_back(
        (" > " + path + " > ").find(fmt::format(" > {} > ", engine::kOptimizerSpan)) != path.npos);
  }
  for (const TraceEvent& event : recording.events) {
    const bool waits = event.kind == TraceEvent::Kind::kRuntime &&
                       event.name.find("Synchronize") != event.name.npos;
    std::optional<Kind> kind;
    if (event.on_gpu()) kind = optimizer[event.path] ? kOptimizer : KindOfName(event.name);
    if (event.kind == TraceEvent::Kind::kCopy && kind != kOptimizer) kind = kCopies;
    if (waits) kind = kIdle;
    if (IsCalled(event, engine::kDataSpan)) kind = kData;
    if (kind) sweep.Add(event.begin_ns, event.end_ns, *kind);
  }
}

double Seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

}  // namespace

std::string KindOf(std::string_view name) { return std::string(kNames[KindOfName(name)]); }

void Arrange(Recording& recording, int64_t skip, int64_t most) {
  std::ranges::sort(recording.events, [](const TraceEvent& a, const TraceEvent& b) {
    return std::tuple(a.begin_ns, -a.end_ns, a.kind) < std::tuple(b.begin_ns, -b.end_ns, b.kind);
  });
  FindSteps(recording, skip, most);
  std::erase_if(recording.events,
                [&](const TraceEvent& event) { return !InSomeStep(recording, event); });
  FindPaths(recording);
}

channel::StepTable TableOf(const Recording& recording) {
  Sweep sweep;
  channel::StepTable table;
  int64_t all_ns = 0;
  for (const Recording::Step& step : recording.steps) {
    sweep.Add(step.begin_ns, step.end_ns, kInStep);
    all_ns += step.end_ns - step.begin_ns;
  }
  recording.gpu ? AddGpu(recording, sweep) : AddCpu(recording, sweep);
  sweep.Run();
  table.first_step = recording.steps.front().number;
  table.steps = static_cast<int64_t>(recording.steps.size());
  table.seconds = Seconds(all_ns);
  for (size_t kind = 0; kind < kKinds; ++kind) {
    table.shares.push_back({std::string(kNames[kind]), Seconds(sweep.of(kind))});
  }
  table.hidden_communication = Seconds(sweep.hidden());
  return table;
}

}  // namespace sft::rank
