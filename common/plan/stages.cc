#include "common/plan/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

#include "common/plan/memory.h"
#include "common/plan/parameters.h"
#include "common/plan/schedule.h"
#include "common/plan/tensors.h"

namespace sft::plan {
namespace {

// Micro-batches of each stage that keep all of them busy for most of a step.
constexpr int kEnoughRounds = 4;

// Of a job's tokens those that predict a target, where answers alone do.
constexpr double kAnswerShare = 0.5;

using Cost = std::function<double(int piece, int first, int last)>;

// The cut of `units` into `pieces` whose dearest is as cheap as can be; of equal ones the most
// even.
std::vector<int> Cut(int units, int pieces, const Cost& cost) {
  struct Best {
    double most = std::numeric_limits<double>::infinity();
    double squares = std::numeric_limits<double>::infinity();
    int from = 0;
    bool operator<(const Best& other) const {
      return std::tie(most, squares) < std::tie(other.most, other.squares);
    }
  };
  // best[piece][end]: of the first units up to `end`, in piece + 1 pieces.
  std::vector<std::vector<Best>> best(static_cast<size_t>(pieces),
                                      std::vector<Best>(static_cast<size_t>(units) + 1));
  for (int piece = 0; piece < pieces; ++piece) {
    for (int end = piece + 1; end <= units - (pieces - 1 - piece); ++end) {
      Best& here = best[static_cast<size_t>(piece)][static_cast<size_t>(end)];
      for (int begin = piece == 0 ? 0 : piece; begin < (piece == 0 ? 1 : end); ++begin) {
        const double own = cost(piece, begin, end);
        Best candidate{own, own * own, begin};
        if (piece > 0) {
          const Best& before = best[static_cast<size_t>(piece) - 1][static_cast<size_t>(begin)];
          candidate.most = std::max(candidate.most, before.most);
          candidate.squares += before.squares;
        }
        if (candidate < here) here = candidate;
      }
    }
  }
  std::vector<int> begins = {units};
  for (int piece = pieces - 1; piece >= 0; --piece) {
    const int end = begins.front();
    begins.insert(begins.begin(), best[static_cast<size_t>(piece)][static_cast<size_t>(end)].from);
  }
  return begins;
}

double Sum(const std::vector<double>& costs, int first, int last) {
  double sum = 0;
  for (int unit = first; unit < last; ++unit) sum += costs[static_cast<size_t>(unit)];
  return sum;
}

// Products of a token with a unit's weights, in the forward; of a stack those of its own experts.
double ProductsOf(const ModelShape& shape, int64_t layer, const TensorUnit& unit) {
  double products = 0;
  for (const TensorInfo& tensor : unit.tensors) {
    if (tensor.role != TensorRole::kLinear) continue;
    double share = 1;
    if (tensor.experts > 0) {
      share = static_cast<double>(shape.Layer(layer).chosen) / static_cast<double>(tensor.experts);
    }
    products += share * static_cast<double>(tensor.elements());
  }
  return products;
}

std::string Layers(int first, int last) {  // units of blocks
  return last - first == 1 ? fmt::format("{}", first - 1)
                           : fmt::format("{}-{}", first - 1, last - 2);
}

// An entry of a table: modules that begin so, and their stage.
struct Entry {
  std::string module;
  int stage = 0;
  bool used = false;
};

bool Covers(std::string_view key, std::string_view module) {
  return key.empty() || module == key ||
         (module.starts_with(key) && module.substr(key.size()).starts_with('.'));
}

class Table {
 public:
  explicit Table(const std::vector<std::string>& entries) {
    for (const std::string& text : entries) {
      const size_t at = text.rfind('=');
      Entry entry{.module = text.substr(0, at)};
      std::from_chars(text.data() + at + 1, text.data() + text.size(), entry.stage);
      entries_.push_back(std::move(entry));
    }
  }

  // The stage of a module: that of the longest name that covers it; -1: none does.
  int StageOf(std::string_view module) {
    Entry* longest = nullptr;
    for (Entry& entry : entries_) {
      if (!Covers(entry.module, module)) continue;
      entry.used = true;
      if (longest == nullptr || entry.module.size() > longest->module.size()) longest = &entry;
    }
    return longest == nullptr ? -1 : longest->stage;
  }

  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

constexpr std::string_view kMapName = "device_map";

// The stage of each unit as the table says.
absl::StatusOr<std::vector<int>> StagesInTable(const ModelShape& shape, Table& table) {
  std::vector<int> stages;
  for (const TensorUnit& unit : TensorsOf(shape)) {
    int stage = -1;
    std::string first;
    for (const TensorInfo& tensor : unit.tensors) {
      const std::string module = RuntimeModule(shape.prefix, tensor.module());
      const int own = table.StageOf(module);
      if (own < 0) {
        return InvalidArgument(fmt::format("{} has no entry for {}", kMapName, module));
      }
      if (stage >= 0 && own != stage) {
        return InvalidArgument(
            fmt::format("{} puts {} on {} and {} on {}: a layer is not divided, and the final norm "
                        "goes with the head",
                        kMapName, first, stage, module, own));
      }
      stage = own;
      if (first.empty()) first = module;
    }
    stages.push_back(stage);
  }
  // Of a head that is the embedding there is a copy beside the final norm, wherever it is put.
  if (shape.tied_head) table.StageOf(NamesOf(shape).head);
  for (const Entry& entry : table.entries()) {
    if (entry.used) continue;
    return InvalidArgument(
        fmt::format("{} names \"{}\", which this model does not have", kMapName, entry.module));
  }
  return stages;
}

absl::StatusOr<StageMap> FromTable(const ModelShape& shape, const spec::JobSpec& job) {
  const auto& p = job.parallelism;
  Table table(p.device_map);
  SFT_ASSIGN_OR_RETURN(const std::vector<int> of_units, StagesInTable(shape, table));
  StageMap map{.stages = p.pipeline_parallel_size};
  for (size_t unit = 0; unit < of_units.size(); ++unit) {
    const bool begins = unit == 0 || of_units[unit] != of_units[unit - 1];
    if (!begins) continue;
    const int expected = static_cast<int>(map.begins.size()) % map.stages;
    if (of_units[unit] != expected) {
      return InvalidArgument(fmt::format(
          "{} goes from stage {} to {} at {}: stages are numbered from 0 in the order of the "
          "model, without gaps, and may begin again at 0 where each has as many pieces",
          kMapName, unit == 0 ? "nothing" : std::to_string(of_units[unit - 1]), of_units[unit],
          unit == 0                     ? "the embedding"
          : unit + 1 == of_units.size() ? "the final norm"
                                        : BlockName(shape, static_cast<int64_t>(unit) - 1)));
    }
    map.begins.push_back(static_cast<int>(unit));
  }
  const int pieces = static_cast<int>(map.begins.size());
  map.begins.push_back(static_cast<int>(of_units.size()));
  if (pieces != map.stages * p.virtual_pipeline_parallel_size) {
    return InvalidArgument(
        pieces % map.stages == 0
            ? fmt::format("{} gives each of {} stages {} pieces: set "
                          "virtual_pipeline_parallel_size = {}",
                          kMapName, map.stages, pieces / map.stages, pieces / map.stages)
            : fmt::format("{} has {} pieces for {} stages: each stage needs as many", kMapName,
                          pieces, map.stages));
  }
  return map;
}

// Layers pass on nothing but the residual stream.
absl::Status CheckLinks(const ModelShape& shape) {
  bool links = shape.layer_input > 0;
  for (int64_t layer = 0; layer < shape.layers; ++layer) links |= shape.Layer(layer).keys_of >= 0;
  if (!links) return absl::OkStatus();
  return InvalidArgument(fmt::format(
      "a pipeline does not go with this {} model yet, whose layers read the keys, values or inputs "
      "that others make: use fsdp = true, which divides every layer over the GPUs",
      shape.family));
}

// Each stage takes units while they fit beside the largest block, which it has to run.
absl::StatusOr<std::vector<int>> Fill(const std::vector<double>& memory, int stages, double room) {
  const double largest = *std::max_element(memory.begin() + 1, memory.end() - 1);
  const int units = static_cast<int>(memory.size());
  std::vector<int> begins = {0};
  double held = 0;
  for (int unit = 0; unit < units; ++unit) {
    const double more = memory[static_cast<size_t>(unit)];
    if (unit > begins.back() && held + more > room - largest) {
      begins.push_back(unit);
      held = 0;
    }
    held += more;
  }
  const int needed = static_cast<int>(begins.size());
  if (needed == 1) {
    return InvalidArgument(
        fmt::format("device_map = \"sequential\" puts the whole model on the first of {} GPUs, and "
                    "nothing on the others: leave it out, and each has the whole model and rows of "
                    "its own, or use device_map = \"balanced\"",
                    stages));
  }
  if (needed < stages) {
    return InvalidArgument(fmt::format(
        "device_map = \"sequential\" fills {} of {} stages and leaves the others empty: set "
        "pipeline_parallel_size = {}, or device_map = \"balanced\"",
        needed, stages, needed));
  }
  if (needed > stages) {
    return InvalidArgument(
        fmt::format("device_map = \"sequential\" needs {} stages for this model, and there are {}: "
                    "set pipeline_parallel_size = {}",
                    needed, stages, needed));
  }
  begins.push_back(units);
  return begins;
}

// "36 stages", "4 pieces in each of 8 stages"
std::string MostPieces(const ModelShape& shape, const spec::JobSpec::Parallelism& p) {
  const int64_t each = shape.layers / p.pipeline_parallel_size;
  return p.virtual_pipeline_parallel_size > 1 && each > 0
             ? fmt::format("{} piece{} in each of {} stages", each, each == 1 ? "" : "s",
                           p.pipeline_parallel_size)
             : fmt::format("{} stages", shape.layers);
}

}  // namespace

int StageMap::PieceOf(int unit) const {
  if (begins.empty()) return 0;
  return static_cast<int>(std::upper_bound(begins.begin(), begins.end() - 1, unit) -
                          begins.begin()) -
         1;
}

std::string StageMap::ToText() const {
  if (begins.empty()) return "all layers";
  std::string text;
  const int head = begins.back() - 1;
  for (int piece = 0; piece < pieces(); ++piece) {
    const int first = std::max(begins[static_cast<size_t>(piece)], 1);
    const int last = std::min(begins[static_cast<size_t>(piece) + 1], head);
    std::string part = first < last ? Layers(first, last) : "";
    const auto add = [&part](const char* what) {
      part += fmt::format("{}{}", part.empty() ? "" : " + ", what);
    };
    if (piece == 0 && part.empty()) add("embedding");
    if (piece + 1 == pieces()) add("head");
    text += fmt::format("{}{}", piece == 0 ? "layers " : " | ", part);
  }
  return text;
}

absl::StatusOr<UnitCosts> CostsOf(const ModelShape& shape, const spec::JobSpec& job) {
  SFT_ASSIGN_OR_RETURN(const std::vector<Unit> units, MakeUnits(shape, job));
  const std::vector<TensorUnit> tensors = TensorsOf(shape);
  const auto trains = [&](size_t unit) {
    const auto& all = units[unit].parameters;
    return std::any_of(all.begin(), all.end(), [](const Parameter& p) { return p.trainable; });
  };
  size_t lowest = 0;
  while (lowest < units.size() && !trains(lowest)) ++lowest;
  UnitCosts costs;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    double products = ProductsOf(shape, static_cast<int64_t>(unit) - 1, tensors[unit]);
    if (unit + 1 == units.size()) {
      const bool all = job.data.loss_on == spec::LossOn::kAll;
      products = static_cast<double>(shape.vocab * shape.hidden) * (all ? 1.0 : kAnswerShare);
    }
    double passes = 1;
    if (unit >= lowest) passes += 1 + (job.full_finetune() ? 1 : 0);
    if (unit >= lowest && job.parallelism.activation_checkpointing) passes += 1;
    costs.time.push_back(unit == 0 ? 0 : products * passes);
    costs.memory.push_back(
        static_cast<double>(PlanMemory({units[unit]}, job, Device::kGpu).total()));
  }
  if (shape.tied_head) costs.memory.back() += costs.memory.front();
  return costs;
}

absl::StatusOr<StageMap> DivideModel(const ModelShape& shape, const spec::JobSpec& job,
                                     double stage_memory) {
  const auto& p = job.parallelism;
  StageMap map{.stages = p.pipeline_parallel_size};
  if (map.stages == 1) return map;
  SFT_RETURN_IF_ERROR(CheckLinks(shape));
  if (shape.tied_head && shape.learned_positions > 0 && job.full_finetune() &&
      job.parallelism.sharding != spec::Sharding::kDdp) {
    return InvalidArgument(
        "a pipeline cannot divide this model's optimizer over GPUs too: its embedding, which is "
        "also its head, is trained together with a table that the last stage does not have; use "
        "fsdp = false without use_deepspeed, or leave the pipeline out");
  }
  const int pieces = map.stages * p.virtual_pipeline_parallel_size;
  if (pieces > shape.layers) {
    return InvalidArgument(
        fmt::format("pipeline_parallel_size = {}{} cuts the model into {} pieces, and it has {} "
                    "layers: at most {}",
                    map.stages,
                    p.virtual_pipeline_parallel_size > 1
                        ? fmt::format(" with virtual_pipeline_parallel_size = {}",
                                      p.virtual_pipeline_parallel_size)
                        : "",
                    pieces, shape.layers, MostPieces(shape, p)));
  }
  const std::string word = p.device_map.size() == 1 ? p.device_map.front() : "";
  if (word.find('=') != std::string::npos || p.device_map.size() > 1) return FromTable(shape, job);
  if (word == "sequential" && p.virtual_pipeline_parallel_size > 1) {
    return InvalidArgument(
        "device_map = \"sequential\" fills one GPU after the other, in one piece each: leave "
        "virtual_pipeline_parallel_size out, or use \"balanced\"");
  }
  SFT_ASSIGN_OR_RETURN(const UnitCosts costs, CostsOf(shape, job));
  const int units = static_cast<int>(costs.time.size());
  if (word == "sequential" && stage_memory > 0) {
    SFT_ASSIGN_OR_RETURN(map.begins, Fill(costs.memory, map.stages, stage_memory));
    return map;
  }
  const std::vector<double>& by = word == "auto" ? costs.time : costs.memory;
  map.begins = Cut(units, pieces, [&](int, int first, int last) { return Sum(by, first, last); });
  return map;
}

std::vector<Unit> FullestStage(const std::vector<Unit>& units, const StageMap& stages,
                               const spec::JobSpec& job) {
  if (stages.stages == 1) return units;
  std::vector<std::vector<Unit>> of_stages(static_cast<size_t>(stages.stages));
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const int stage = stages.StageOf(static_cast<int>(unit));
    of_stages[static_cast<size_t>(stage)].push_back(units[unit]);
  }
  return *std::ranges::max_element(of_stages, {}, [&](const std::vector<Unit>& held) {
    return PlanMemory(held, job, Device::kGpu).total();
  });
}

std::string DescribeStages(const StageMap& stages, const spec::JobSpec& job) {
  std::string text = fmt::format("{} stages: {}", stages.stages, stages.ToText());
  const int steps = job.hyperparameters.gradient_accumulation_steps;
  if (steps == 0) return text;
  const absl::StatusOr<double> share = BubbleShare(
      {.stages = stages.stages, .micro_batches = steps, .pieces = stages.pieces_of_stage()});
  if (share.ok()) text += fmt::format("; idle for {:.0f} % of a step", 100 * *share);
  return text;
}

std::optional<spec::Problem> CheckStages(const ModelShape& shape, const spec::JobSpec& job) {
  const absl::Status divided = DivideModel(shape, job).status();
  if (divided.ok()) return std::nullopt;
  const auto& p = job.parallelism;
  const bool by_map = p.device_map != std::vector<std::string>{"auto"};
  return spec::Problem{by_map ? "hyperparameters.parallelism.device_map"
                              : "hyperparameters.parallelism.pipeline_parallel_size",
                       0, std::string(Message(divided))};
}

std::vector<spec::Problem> WarnOfStages(const spec::JobSpec& job) {
  const auto& p = job.parallelism;
  const int steps = job.hyperparameters.gradient_accumulation_steps;
  // 0: the plan divides the rows.
  if (p.pipeline_parallel_size == 1 || steps == 0 || steps >= p.pipeline_parallel_size) return {};
  ScheduleShape shape{.stages = p.pipeline_parallel_size,
                      .micro_batches = steps,
                      .pieces = p.virtual_pipeline_parallel_size};
  const absl::StatusOr<double> now = BubbleShare(shape);
  shape.micro_batches = kEnoughRounds * p.pipeline_parallel_size;
  const absl::StatusOr<double> then = BubbleShare(shape);
  if (!now.ok() || !then.ok()) return {};
  return {
      {"hyperparameters.gradient_accumulation_steps", 0,
       fmt::format("{} micro-batch{} for {} stages leave{} each GPU idle for {:.0f} % of a step; "
                   "gradient_accumulation_steps = {} would leave it {:.0f} %",
                   steps, steps == 1 ? "" : "es", p.pipeline_parallel_size, steps == 1 ? "s" : "",
                   100 * *now, shape.micro_batches, 100 * *then)}};
}

}  // namespace sft::plan
